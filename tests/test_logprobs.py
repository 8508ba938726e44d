"""Log-probabilities and entropies in chunks of tokens against all logits at once, in values and gradients."""

import pytest
import torch

from learner.policy import logprobs as logprobs_module
from learner.policy.logprobs import LogprobHead


@pytest.mark.parametrize("chunk_logits", [1, 7 * 11, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_head_equals_full_log_softmax(monkeypatch, chunk_logits, temperature):
    monkeypatch.setitem(logprobs_module.CHUNK_LOGITS, "cpu", chunk_logits)
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(11, 5))
    hidden = torch.randn(23, 5, requires_grad=True)
    targets, scale = torch.randint(0, 11, (23,)), torch.randn(23)
    got, entropy = LogprobHead(weight)(hidden, targets, temperature)
    (got * scale).sum().backward()
    gradients = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    full = (hidden @ weight.T / temperature).log_softmax(-1)
    expected = full.gather(1, targets[:, None]).squeeze(1)
    (expected * scale).sum().backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(entropy, -(full.exp() * full).sum(-1))
    torch.testing.assert_close(gradients, (hidden.grad, weight.grad))


@pytest.mark.parametrize("chunk_logits", [1, 7 * 11, 1 << 20])
@pytest.mark.parametrize("both", [False, True])
def test_the_entropy_has_a_gradient_too(monkeypatch, chunk_logits, both):
    monkeypatch.setitem(logprobs_module.CHUNK_LOGITS, "cpu", chunk_logits)
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(11, 5))
    hidden = torch.randn(23, 5, requires_grad=True)
    targets, scale = torch.randint(0, 11, (23,)), torch.randn(23)
    got, entropy = LogprobHead(weight)(hidden, targets, 0.7)
    ((entropy * scale).sum() + both * (got * scale.flip(0)).sum()).backward()
    gradients = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    full = (hidden @ weight.T / 0.7).log_softmax(-1)
    chosen = full.gather(1, targets[:, None]).squeeze(1)
    (-(full.exp() * full).sum(-1) @ scale + both * (chosen @ scale.flip(0))).backward()
    torch.testing.assert_close(gradients, (hidden.grad, weight.grad))


def test_chunked_head_on_no_tokens_still_gives_gradients():
    weight = torch.nn.Parameter(torch.randn(11, 5))
    hidden = torch.randn(3, 5, requires_grad=True)
    got, _ = LogprobHead(weight)(hidden[:0], torch.zeros(0, dtype=torch.int64), 1.0)
    got.sum().backward()
    assert (weight.grad == 0).all() and (hidden.grad == 0).all()
