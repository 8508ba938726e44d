"""From one number a token to one number: sums over episodes of a packed row, and the loss of a whole step.

Every episode lies whole in one micro-batch, so sums over it need no other; what is
divided by is counted over the whole optimizer step, on all ranks, so that neither the
micro-batches nor the ranks change the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Σ of values [N] where mask [N] is True; 0 (with a gradient) on an empty mask.

    Masked values do not reach the sum, not even as 0 · inf.
    """
    return values.masked_fill(~mask, 0.0).sum()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Which tokens of a packed row count, and whose they are.

    mask: bool [N], tokens in the loss. segments: int64 [N], the index of the episode each
    token belongs to, 0 … episodes − 1.
    """

    mask: Tensor
    segments: Tensor
    episodes: int

    @classmethod
    def packed(cls, mask: Tensor, cu_seqlens: Tensor) -> Tokens:
        """mask: bool [N]. cu_seqlens: int32 [S + 1], where episodes begin and end."""
        lengths = cu_seqlens.diff().long()
        index = torch.arange(len(lengths), device=mask.device)
        return cls(mask, index.repeat_interleave(lengths, output_size=len(mask)), len(lengths))

    def segment_sum(self, values: Tensor) -> Tensor:
        """Σ of values [N] over the masked tokens of each episode: [S], in the dtype of values."""
        kept = values.masked_fill(~self.mask, 0.0)
        return kept.new_zeros(self.episodes).index_add(0, self.segments, kept)

    def counts(self) -> Tensor:
        """Masked tokens of each episode, at least 1: int64 [S]."""
        zeros = torch.zeros(self.episodes, dtype=torch.int64, device=self.mask.device)
        return zeros.index_add(0, self.segments, self.mask.long()).clamp(min=1)

    def segment_mean(self, values: Tensor) -> Tensor:
        """Mean of values [N] over the masked tokens of each episode: [S]; 0 where there are none."""
        return self.segment_sum(values) / self.counts()

    def spread(self, by_episode: Tensor) -> Tensor:
        """[S] → [N]: each token gets its episode's value."""
        return by_episode[self.segments]


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one optimizer step, over all micro-batches and ranks, silent episodes included.

    tokens: those in the loss. episodes: those with any. max_tokens: ``model.max_tokens``.
    """

    tokens: int
    episodes: int
    max_tokens: int


def aggregate(losses: Tensor, batch: Tokens, totals: Totals, how: str) -> Tensor:
    """This micro-batch's part of the step's loss, a scalar. losses: [N].

    ``token``: Σ / tokens (DAPO, Yu et al. 2025, eq. 12). ``sequence``: mean over episodes of
    the mean over their tokens (GRPO, Shao et al. 2024, eq. 3). ``constant``: Σ / (episodes ·
    max_tokens), so that no episode's weight depends on its length (Dr.GRPO, Liu et al. 2025).
    The parts of all micro-batches and ranks add up to the loss.
    """
    match how:
        case "token":
            return masked_sum(losses, batch.mask) / max(1, totals.tokens)
        case "sequence":
            return masked_sum(losses / batch.spread(batch.counts()), batch.mask) / max(1, totals.episodes)
        case "constant":
            return masked_sum(losses, batch.mask) / (max(1, totals.episodes) * totals.max_tokens)
    raise ValueError(f"algorithm.aggregation: {how!r} is none of token, sequence, constant")
