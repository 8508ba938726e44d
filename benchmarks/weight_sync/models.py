"""Models of several sizes with random weights: what a push costs depends on their shapes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

LENGTH = 512
_VOCABULARY = 832
#: Name → what differs from a small Qwen2; embeddings are tied.
SIZES: dict[str, dict[str, int]] = {
    "0.8M": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 2},
    "30M": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 9, "num_attention_heads": 8},
    "135M": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 14, "num_attention_heads": 12},
}


def make(size: str, folder: Path) -> Path:
    """A model folder that vLLM serves, with a tokenizer of numbered words."""
    torch.manual_seed(0)
    shape: dict[str, Any] = SIZES[size]
    heads = shape["num_attention_heads"]
    config = Qwen2Config(
        vocab_size=_VOCABULARY,
        **shape,
        num_key_value_heads=heads,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, "w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1").save_pretrained(folder)
    return folder


def read(folder: Path) -> dict[str, Tensor]:
    """Name → parameter, float32, as the learner hands them to the pusher."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
