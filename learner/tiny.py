"""The built-in tiny policy: its tokenizer, chat template and Qwen2 configuration.

The tokenizer is byte-level, with one token for each word that the built-in world uses, so it
encodes any text and decodes it byte by byte, and a name costs two tokens. Whole words carry their
leading space: names must follow one everywhere (also in JSON and in tags) to be single tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<answer>", "</answer>",
)  # fmt: skip

#: Pieces of text that may become one token: the scaffold of a Hermes call, possessives, words and
#: numbers with their space, punctuation, line ends.
PIECES = (
    r"""\n?\{"name": "|", "arguments": \{"|": "|"\}\}\n?|'s(?![A-Za-z\d])| ?[A-Za-z]+| ?\d+"""
    r"""|[^\sA-Za-z\d']*\n-?| ?[^\sA-Za-z\d']+|'|\s"""
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
    """A byte-level tokenizer whose vocabulary is all bytes and all pieces of ``texts``.

    ``texts`` are plain or rendered; tags and special tokens in them are told apart first.
    """
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tags = pre_tokenizers.Split(Regex("|".join(t.replace("|", r"\|") for t in SPECIAL + TAGS)), "removed")
    pieces: Counter[str] = Counter()
    for text in texts:
        for part, _ in tags.pre_tokenize_str(text):
            pieces.update(piece for piece, _ in split.pre_tokenize_str(part))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted(piece for piece in pieces if len(piece) > 1)
    vocabulary = {piece: i for i, piece in enumerate(alphabet + words)}
    # ignore_merges: a piece of the vocabulary is one token as it stands; others fall apart into bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
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


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes tokenizer.json and a tokenizer_config.json that holds the chat template."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("backend", None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name that older releases know as well
    path.write_text(json.dumps(config, indent=2) + "\n")
