"""log π and entropy of given tokens without ever holding the logits of all of them.

Logits of N tokens over a vocabulary of V are the largest tensor of a training step.
Here they live one chunk of tokens at a time, in the forward pass and again, recomputed,
in the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Logits in flight at a time: 2^22 float32 are 16 MiB on CPUs (near the cache), 2^26 256 MiB on GPUs.
CHUNK_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 26}


class LogprobHead(nn.Module):
    """The language-model head fused with log-softmax and the choice of one token.

    It shares the head's weight [V, H] as a parameter of its own, so that ZeRO-3 gathers
    it once a pass; one gather a chunk would hang ranks whose numbers of chunks differ.
    """

    def __init__(self, weight: nn.Parameter):
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """hidden [N, H], targets int64 [N] → log-probabilities and entropies, float32 [N].

        Both are of softmax(logits / temperature), and both carry a gradient.
        """
        chunk = max(1, CHUNK_LOGITS["cuda" if hidden.is_cuda else "cpu"] // self.weight.shape[0])
        return _ChunkedLogprobs.apply(hidden, self.weight, targets, temperature, chunk)


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int):
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy, log_z = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for a in range(0, len(targets), chunk):
            part = slice(a, a + chunk)
            logits = _logits(hidden[part], weight, temperature)
            chosen = logits.gather(1, targets[part, None]).squeeze(1)
            probabilities = logits.softmax(-1)
            # The normaliser from the largest probability, which is at least 1/V: one exp a logit serves all three.
            largest, log_sum = logits.amax(-1), -probabilities.amax(-1).log_()
            log_z[part] = largest + log_sum
            logprobs[part] = chosen - largest - log_sum  # not less log Z, which would round at the size of the logits
            entropy[part] = log_z[part] - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(hidden, weight, targets, log_z, entropy)
        ctx.set_materialize_grads(False)  # None says that a result is not in the loss: the entropies seldom are
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs: Tensor | None, grad_entropy: Tensor | None):
        hidden, weight, targets, log_z, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        trained = ctx.needs_input_grad[1]  # not under adapters
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if trained else None
        if grad_logprobs is None:
            grad_logprobs = torch.zeros(len(targets), device=hidden.device)
        for a in range(0, len(targets), ctx.chunk):
            part = slice(a, a + ctx.chunk)
            all_logprobs = _logits(hidden[part], weight, ctx.temperature).sub_(log_z[part, None])
            scale = (grad_logprobs[part] / ctx.temperature).unsqueeze(1)
            if grad_entropy is None:
                # d log π(y) / d logits = (one-hot(y) − π) / temperature. What scales it goes to the [n, H] sides.
                grad = all_logprobs.exp_().scatter_add_(1, targets[part, None], torch.full_like(scale, -1.0))
                scale = -scale
            else:
                # d H / d logits = −π (log π + H) / temperature
                probabilities = all_logprobs.exp()
                by_entropy = (grad_entropy[part] / ctx.temperature).unsqueeze(1)
                grad = all_logprobs.add_(entropy[part, None]).mul_(by_entropy).add_(scale).mul_(probabilities).neg_()
                grad.scatter_add_(1, targets[part, None], scale)
                scale = torch.ones_like(scale)
            grad = grad.to(hidden.dtype)
            torch.mm(grad, weight, out=grad_hidden[part])
            grad_hidden[part] *= scale
            if trained:
                _add_mm(grad_weight, grad.T, (hidden[part] * scale).to(hidden.dtype))
        return grad_hidden, grad_weight.to(weight.dtype) if trained else None, None, None, None


def _add_mm(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, total in float32."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)
