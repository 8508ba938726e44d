"""From what a person names to a model folder: a checkpoint of a run holds DeepSpeed's files, not a model's."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from learner.run import checkpoints

if TYPE_CHECKING:
    from torch import Size, Tensor


def model_folder(path: str, scratch: Path) -> str:
    """``path`` if it is a model folder or a hub name; a checkpoint, or a run's newest one, as a model folder in ``scratch``.

    Raises ``ValueError`` for a checkpoint that is not whole, or a run that has none yet.
    """
    folder = Path(path)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return path
    if (folder / "checkpoints").is_dir():
        newest = checkpoints.newest_whole(folder / "checkpoints")
        if newest is None:
            raise ValueError(f"model.path: the run in {folder} has no checkpoint yet")
        return str(_convert(newest, scratch))
    if (folder / checkpoints.STATE).is_file():
        if problem := checkpoints.damage(folder):
            raise ValueError(f"model.path: {folder} is damaged: {problem}; take another checkpoint")
        return str(_convert(folder, scratch))
    return path


def _convert(checkpoint: Path, scratch: Path) -> Path:
    """The policy in a whole checkpoint as a Hugging Face folder; its tokenizer is that of the run's ``model.path``."""
    # Only here: torch and DeepSpeed take seconds, and most evaluations need neither.
    from configs.lora import LoraConfig
    from learner.policy.model import PolicyModel, load_policy, named_weights, resolve_model, save_model

    model = yaml.safe_load((checkpoint.parents[1] / "config.yaml").read_text(encoding="utf-8"))["model"]
    source, target = resolve_model(model["path"]), scratch / checkpoint.name
    lora = LoraConfig.model_validate(model["lora"]) if model.get("lora") else None
    policy = PolicyModel(load_policy(source, model["dtype"], lora))
    weights = _weights(checkpoint / "engine")
    if missing := [name for name, p in policy.named_parameters() if p.requires_grad and name not in weights]:
        raise ValueError(
            f"model.path: {checkpoint} lacks {', '.join(missing[:3])}: not a checkpoint of {model['path']}"
        )
    policy.load_state_dict(weights, strict=False)  # a tied head may come under one name or under both
    save_model(policy.lm, source, target, dict(named_weights(policy.lm)))
    return target


def _weights(engine: Path) -> dict[str, Tensor]:
    """Name → whole tensor. Below ZeRO-3 rank 0's file has them all; there each rank's has a part of each."""
    from learner.policy.zero import SafeCheckpointEngine

    load = functools.partial(SafeCheckpointEngine().load, map_location="cpu")
    whole = engine / "mp_rank_00_model_states.pt"
    if whole.is_file():
        return load(str(whole))["module"]
    shapes = load(str(engine / "zero_pp_rank_0_mp_rank_00_model_states.pt"))["param_shapes"]
    ranks = len(list(engine.glob("zero_pp_rank_*_optim_states.pt")))
    files = [engine / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ranks)]
    parts = [load(str(file))["optimizer_state_dict"]["fp32_flat_groups"] for file in files]
    return _joined({name: shape for group in shapes for name, shape in group.items()}, parts)


def _joined(shapes: dict[str, Size], parts: list[list[Tensor]]) -> dict[str, Tensor]:
    """ZeRO-3 cuts each flat tensor into as many equal parts as ranks, the last one padded, and lays them end to end.

    parts: of each rank, float32. DeepSpeed's own converter does the same, but not with files of torch's older form.
    """
    import torch

    flat = [torch.cat([group.flatten() for group in groups]) for groups in parts]
    at, out = 0, {}
    for name, shape in shapes.items():
        size = -(-shape.numel() // len(flat))
        out[name] = torch.cat([rank[at : at + size] for rank in flat])[: shape.numel()].view(shape)
        at += size
    return out
