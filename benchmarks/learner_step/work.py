"""The model and the batch that all arms train: real lengths, random weights and tokens."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.transport.samples import trajectory
from protocol.trajectory import Group

GROUP = 8
#: Tokens of an episode: a lognormal of this median and 99th percentile.
MEDIAN, P99 = 300, 2000
#: name → (hidden size, layers, vocabulary). Two heads share their keys and values.
MODELS = {"tiny": (128, 4, 4096), "small": (256, 6, 16384), "large": (2048, 24, 151_936)}


def lengths(count: int) -> list[int]:
    """``count`` quantiles of the lognormal at equal distances, in an order that looks random and is not."""
    sigma = np.log(P99 / MEDIAN) / NormalDist().inv_cdf(0.99)
    values = [round(MEDIAN * np.exp(sigma * NormalDist().inv_cdf((i + 0.5) / count))) for i in range(count)]
    return [values[i] for i in np.random.default_rng(0).permutation(count)]


def batch(sizes: list[int], vocabulary: int) -> tuple[list[Group], list[list[np.ndarray]]]:
    """Groups of ``GROUP`` episodes of these lengths, and advantages for each token of each: float32 [T], none zero.

    The policy's tokens are half of an episode, in five turns; the first tenth is the prompt.
    """
    rng = np.random.default_rng(0)
    members = [trajectory(seed, tokens=tokens) for seed, tokens in enumerate(sizes)]
    for member in members:
        member.token_ids = (member.token_ids % vocabulary).astype("<i4")
    groups = [Group(f"l{i}", f"t{i}", members[i : i + GROUP]) for i in range(0, len(members), GROUP)]
    advantages = [[member.action_mask * np.float32(rng.normal()) for member in g.trajectories] for g in groups]
    return groups, advantages


def save_arrays(path: Path, groups: list[Group], advantages: list[list[np.ndarray]]) -> None:
    """The batch for those who do not know our types: all episodes end to end, and one advantage for each."""
    members = [member for group in groups for member in group.trajectories]
    np.savez(
        path,
        lengths=[len(member) for member in members],
        token_ids=np.concatenate([member.token_ids for member in members]),
        action_mask=np.concatenate([member.action_mask for member in members]),
        advantages=[values[np.abs(values).argmax()] for group in advantages for values in group],
    )


def save_model(folder: Path, size: str) -> None:
    """A Qwen2 of random weights with the tokenizer that TRL's trainer asks for and nobody uses."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    hidden, layers, vocabulary = MODELS[size]
    heads = hidden // (128 if hidden > 1000 else 32)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=11 * hidden // 4, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<end>": 0, "x": 1}, unk_token="x"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>", unk_token="x")
    tokenizer.save_pretrained(folder)
