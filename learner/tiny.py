"""The built-in tiny policy: its tokenizer, chat template and Qwen2 configuration.

The tokenizer knows every word of the built-in world as one token and any other text byte by byte, so
a name costs two tokens and nothing is out of vocabulary. Words carry their leading space: a name must
follow one everywhere (also in JSON and in tags) to be two tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen2Config

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<answer>", "</answer>",
)  # fmt: skip

#: Pieces of text that become one token: the scaffold of a Hermes call, possessives with the relation that
#: follows (so that a phrase can be copied by looking one token back), line ends, words and numbers with
#: their space, other marks.
PIECE = re.compile(
    r"""\n\{"name": "|", "arguments": \{"|": "|"\}\}\n|'s [a-z]+|'s|\.\n-|\n-| ?[A-Za-z]+| ?\d+| ?[^\sA-Za-z\d']+|'|\s"""
)

#: ChatML with tool messages as Qwen2.5 writes them: neighbours share one user turn.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with one token for each piece of ``texts`` (tags in them are told apart first).

    The pieces are added tokens over a byte-level BPE without merges. Loaders of the Qwen2 class keep a
    tokenizer's vocabulary and added tokens but bring their own splitting rule, under which a year or
    the scaffold of a call could not be one token; this form survives them.
    """
    tags = re.compile("|".join(map(re.escape, SPECIAL + TAGS)))
    pieces = {piece for text in texts for part in tags.split(text) for piece in PIECE.findall(part)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.NFC()  # as Qwen2 has it
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    words = sorted(piece for piece in pieces if len(piece) > 1)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in (*TAGS, *words)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_config(tokenizer: PreTrainedTokenizerFast, hidden: int = 128, layers: int = 3) -> Qwen2Config:
    """A Qwen2 of under a million parameters; heads of 64, the smallest that every vLLM backend has kernels for."""
    return Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )


def look_one_back(attention: nn.Module, head: int, gain: float = 60.0, pairs: int = 8) -> None:
    """Sets the query and key biases of one head so that it attends to the token before, whatever the tokens.

    Under rotary embeddings a constant query q and key k score Σᵢ qᵢ·R(δθᵢ)kᵢ at distance δ, which here
    is gain · Σ cos((δ − 1)θᵢ) over the ``pairs`` fastest rotations, before the division by √d: largest
    at δ = 1. Copying needs such a head (Olsson et al. 2022); it forms by itself too, some hundred steps later.
    """
    size = attention.head_dim
    theta = attention.config.rope_parameters["rope_theta"] ** (-2.0 * torch.arange(pairs) / size)
    first, second = head * size + torch.arange(pairs), head * size + size // 2 + torch.arange(pairs)
    with torch.no_grad():
        attention.k_proj.bias[first] = math.sqrt(gain)
        attention.q_proj.bias[first] = math.sqrt(gain) * theta.cos()
        attention.q_proj.bias[second] = -math.sqrt(gain) * theta.sin()


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes tokenizer.json and a tokenizer_config.json that holds the chat template."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("backend", None)
    config["tokenizer_class"] = "Qwen2Tokenizer"
    path.write_text(json.dumps(config, indent=2) + "\n")
