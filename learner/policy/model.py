"""The policy: a causal LM of transformers on packed rows, with log-probabilities as its output.

Sequences are concatenated into one row and the linear layers see just that. Only
attention needs to know where sequences begin; it is told by ``cu_seq_lens_q``, which
transformers hands through to the attention implementation registered here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from configs.lora import LoraConfig
from configs.pretrained import how_to_get
from learner.policy.logprobs import LogprobHead
from learner.policy.lora import add_adapters, whole_weights
from learner.policy.packing import MicroBatch

ATTENTION = "rollway_packed"
#: Files of a model folder that are not weights; an export takes them along byte for byte.
TOKENIZER_FILES = ("tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json",
                   "vocab.*", "merges.txt", "generation_config.json")  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    keep: Tensor | None = None,
    expand: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each sequence of a packed row.

    query [1, Hq, N, D], key and value [1, Hkv, N, D] → [1, N, Hq, D]; M instead of N where tokens are shared
    (``keep`` [M] and ``expand`` [N], see ``sharing``): what each sequence sees is laid out in full here. No padding and no
    N × N mask: one variable-length kernel on GPUs in half precision, else one fused call
    a sequence. Dropout is ignored: a sampled probability can only be reproduced without.
    """
    if cu_seq_lens_q is None:
        raise ValueError("packed attention needs cu_seq_lens_q: call the model through PolicyModel")
    if sliding_window is not None and max_length_q > sliding_window:
        raise ValueError(
            f"an episode of {max_length_q} tokens exceeds the model's attention window of {sliding_window}; "
            "lower model.max_tokens or choose a model with full attention"
        )
    if unused.get("softcap") is not None or unused.get("s_aux") is not None:
        raise ValueError(f"{type(module).__name__}: attention soft-capping and sinks are not supported by the learner")
    if expand is not None:
        query, key, value = (x.index_select(2, expand) for x in (query, key, value))
    out = _causal(query, key, value, cu_seq_lens_q, max_length_q, scaling)
    return (out if keep is None else out.index_select(1, keep)), None


def _causal(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int, scaling: float | None
) -> Tensor:
    """[1, H, N, D] → [1, N, Hq, D]."""
    gqa = query.shape[1] != key.shape[1]
    if query.is_cuda and query.dtype != torch.float32:
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        out = varlen_attn(
            q, k, v, cu_seqlens, cu_seqlens, longest, longest,
            scale=scaling, window_size=(-1, 0), enable_gqa=gqa,
        )  # fmt: skip
        return out.unsqueeze(0)
    # split, not slices: the gradient of n slices is n buffers of the whole row.
    lengths = cu_seqlens.diff().tolist()
    parts = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    outs = [F.scaled_dot_product_attention(*qkv, is_causal=True, scale=scaling, enable_gqa=gqa) for qkv in parts]
    return torch.cat([out.transpose(1, 2) for out in outs], 1)


# No mask function is registered beside it: transformers then builds no mask at all.
AttentionInterface.register(ATTENTION, packed_attention)


class PolicyModel(nn.Module):
    """A causal LM whose forward pass answers log-probabilities instead of logits."""

    def __init__(self, lm: PreTrainedModel):
        super().__init__()
        self.lm = lm
        self.head = LogprobHead(lm.get_output_embeddings().weight)

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        longest: int,
        action_mask: Tensor,
        temperature: float,
        keep: Tensor | None = None,
        expand: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each token in ``action_mask`` given all before it in its own sequence.

        token_ids, position_ids: int64 [N]. cu_seqlens: int32 [S + 1]. action_mask: bool
        [N], False on each sequence's first token. keep, expand: see ``backbone``. Returns log-probabilities and
        entropies of the distribution each token was drawn from, both with gradient:
        float32 [N], 0 where the mask is False. Prompts and tool answers are most tokens
        of an episode, and logits are not computed for them.
        """
        hidden = backbone(self.lm.base_model, token_ids, position_ids, cu_seqlens, longest, keep, expand)
        at = action_mask.nonzero().squeeze(1)
        before = at - 1 if expand is None else expand[at - 1]
        logprobs, entropy = self.head(hidden.index_select(0, before), token_ids[at], temperature)
        nothing = torch.zeros(len(token_ids), device=hidden.device)
        return nothing.index_copy(0, at, logprobs), nothing.index_copy(0, at, entropy)


def backbone(
    model: nn.Module,
    token_ids: Tensor,
    position_ids: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    keep: Tensor | None = None,
    expand: Tensor | None = None,
) -> Tensor:
    """Hidden states of packed rows: [N, H], or [M, H] of the tokens in ``keep``, of which ``expand`` makes the N."""
    if keep is not None:
        token_ids, position_ids = token_ids[keep], position_ids[keep]
    return model(
        input_ids=token_ids.unsqueeze(0),
        position_ids=position_ids.unsqueeze(0),
        use_cache=False,
        cu_seq_lens_q=cu_seqlens,
        max_length_q=longest,
        keep=keep,
        expand=expand,
    ).last_hidden_state[0]


def packed_inputs(batch: MicroBatch, device: torch.device) -> dict[str, Any]:
    """Keyword arguments of ``backbone`` for one micro-batch."""
    arrays = {name: getattr(batch, name) for name in ("token_ids", "position_ids", "cu_seqlens")}
    if batch.computed < batch.tokens:
        arrays |= {"keep": batch.sharing.keep, "expand": batch.sharing.expand}
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()} | {
        "longest": batch.longest
    }


def inputs_of(batch: MicroBatch, device: torch.device, temperature: float) -> dict[str, Any]:
    """Keyword arguments of ``PolicyModel.forward`` for one micro-batch; scored are the tokens in the loss."""
    scored = torch.from_numpy(batch.loss_mask).to(device, non_blocking=True)
    return packed_inputs(batch, device) | {"action_mask": scored, "temperature": temperature}


def load_policy(path: str | Path, dtype: str = "float32", lora: LoraConfig | None = None) -> PreTrainedModel:
    """The causal LM in ``path``, in training mode, without dropout, with packed attention.

    dtype: ``float32`` or ``bfloat16``. lora: gives it adapters, which alone are trained then.
    Raises ``FileNotFoundError`` if there is no such model and ``ValueError`` if its logits
    are more than its head on its last hidden states (scaled or capped logits), which the
    learner would get wrong, or if the adapters do not fit it.
    """
    folder = resolve_model(path)
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation=ATTENTION)
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    _check_head(lm)
    if lora:
        add_adapters(lm, lora)
    return lm.train()


def named_weights(lm: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of each parameter, as vLLM's ``load_weights`` knows them; a tied head is not repeated.

    Adapters are merged into what they adapt, a new tensor each time; all others are the live ones.
    """
    for weight in whole_weights(lm):
        yield weight.name, weight.whole()


def save_model(lm: PreTrainedModel, source: Path, folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write ``weights`` (as ``named_weights`` names them) with ``lm``'s config and the tokenizer of folder ``source``."""
    lm.save_pretrained(folder, state_dict=dict(weights))
    for pattern in TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def resolve_model(path: str | Path, option: str = "model.path") -> Path:
    """The local folder of a model given as folder or hub name; ``option`` named it.

    Raises ``FileNotFoundError`` that says what was looked for.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not _like_hub_name(str(path)):
        raise FileNotFoundError(f"{option}: {folder} is not a model folder (it has no config.json){how_to_get(path)}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path), ignore_patterns=["*.bin", "*.pth", "*.gguf", "original/*"]))
    except Exception as error:
        raise FileNotFoundError(
            f"{option}: {path} is neither a folder here nor a model that the hub can give ({type(error).__name__})"
        ) from error


def _like_hub_name(path: str) -> bool:
    return path.count("/") == 1 and not path.startswith((".", "/", "~", "configs/", "runs/"))


@torch.no_grad()
def _check_head(lm: PreTrainedModel) -> None:
    ids = torch.arange(4).unsqueeze(0)
    packed = {"cu_seq_lens_q": torch.tensor([0, 4], dtype=torch.int32), "max_length_q": 4, "use_cache": False}
    head = lm.get_output_embeddings()
    logits = lm(input_ids=ids, **packed).logits
    hidden = lm.base_model(input_ids=ids, **packed).last_hidden_state
    if head.bias is not None or not torch.allclose(logits, hidden @ head.weight.T, rtol=1e-2, atol=1e-2):
        raise ValueError(
            f"model.path: {type(lm).__name__} does more to its logits than one linear head (scale, soft cap or bias); "
            "the learner does not support it"
        )
