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
        ctx.save_for_backward(hidden, weight, targets)
        ctx.set_materialize_grads(False)  # None says that a result is not in the loss: the entropies seldom are
        ctx.temperature, ctx.chunk = temperature, chunk
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.empty_like(logprobs)
        for a in range(0, len(targets), chunk):
            part = slice(a, a + chunk)
            all_logprobs = _logits(hidden[part], weight, temperature).log_softmax(-1)
            logprobs[part] = all_logprobs.gather(1, targets[part, None]).squeeze(1)
            entropy[part] = -torch.linalg.vecdot(all_logprobs.exp(), all_logprobs)
        return logprobs, entropy

    @staticmethod
    def backward(ctx, grad_logprobs: Tensor | None, grad_entropy: Tensor | None):
        # d log π(y) / d logits = (one-hot(y) − π) / temperature
        # d H / d logits = −π (log π + H) / temperature
        hidden, weight, targets = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        if grad_logprobs is None:
            grad_logprobs = torch.zeros(len(targets), device=hidden.device)
        for a in range(0, len(targets), ctx.chunk):
            part = slice(a, a + ctx.chunk)
            scale = (grad_logprobs[part] / ctx.temperature).unsqueeze(1)
            logits = _logits(hidden[part], weight, ctx.temperature)
            extra = None if grad_entropy is None else _entropy_grad(logits, grad_entropy[part] / ctx.temperature)
            grad = logits.softmax(-1).mul_(-scale)
            if extra is not None:
                grad += extra
            grad = grad.scatter_add_(1, targets[part, None], scale).to(hidden.dtype)
            torch.mm(grad, weight, out=grad_hidden[part])
            grad_weight += grad.T @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


def _entropy_grad(logits: Tensor, scale: Tensor) -> Tensor:
    """scale · d H / d logits, logits [n, V], scale [n]."""
    logprobs = logits.log_softmax(-1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).sum(-1, keepdim=True)
    return probabilities.mul_(logprobs.add_(entropy)).mul_(-scale.unsqueeze(1))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)
