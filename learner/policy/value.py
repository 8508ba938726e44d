"""The critic's network: the backbone of the policy's class with one number a token as its output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from learner.policy.model import backbone


class ValueHead(nn.Linear):
    """hidden [N, H] → V [N], computed in float32 whatever the model's dtype.

    It starts at zero: a critic that has learnt nothing yet says 0 everywhere and adds no
    noise to the first advantages.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype):
        super().__init__(hidden_size, 1, dtype=dtype)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden.float(), self.weight.float(), self.bias.float()).squeeze(-1)


class ValueModel(nn.Module):
    """V of the state after each token of packed rows. The language-model head is left behind."""

    def __init__(self, lm: PreTrainedModel):
        super().__init__()
        self.backbone = lm.base_model
        self.head = ValueHead(lm.config.get_text_config().hidden_size, lm.dtype)

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        longest: int,
        keep: Tensor | None = None,
        expand: Tensor | None = None,
    ) -> Tensor:
        """token_ids, position_ids: int64 [N]. cu_seqlens: int32 [S + 1]. Returns float32 [N]."""
        values = self.head(backbone(self.backbone, token_ids, position_ids, cu_seqlens, longest, keep, expand))
        return values if expand is None else values.index_select(0, expand)
