"""What is in a checkpoint: the state of policy and critic, and the run's own. ``learner.run.checkpoints`` keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from learner.policy.critic import Critic
from learner.policy.engine import PolicyEngine
from learner.run import checkpoints
from learner.run.durable import fresh_folder_beside


def save_checkpoint(
    engine: PolicyEngine, root: Path, step: int, extra: dict[str, Any], keep: int, critic: Critic | None = None
) -> int:
    """Write ``root/checkpoint-<step>`` with the state of policy and critic and ``extra`` (JSON values).

    All of it is in one folder, so no kill can leave parts of different steps. Keeps the
    ``keep`` newest checkpoints and returns the step of the oldest of them. With several
    ranks ``root`` must be a folder that all of them see.
    """
    aside = fresh_folder_beside(checkpoints.path_of(root, step))
    engine.save_state(aside)
    if critic:
        critic.save_state(aside)
    layout = {"step": step, "ranks": engine.ranks.size, "zero_stage": engine.cfg.learner.zero_stage}
    checkpoints.seal(aside, layout | {"critic": critic is not None, "lora": _lora(engine), "extra": extra})
    checkpoints.place(aside, root, step)
    return checkpoints.prune(root, keep)


def load_checkpoint(engine: PolicyEngine, root: Path, critic: Critic | None = None) -> dict[str, Any] | None:
    """Bring policy and critic to the newest whole checkpoint, and undo those after it. Returns its ``extra``.

    None if there is no checkpoint yet. Raises ``ValueError`` when none is whole, and as ``restore`` does.
    """
    folder = checkpoints.newest_whole(root)
    if folder is None:
        return None
    state = restore(engine, folder, critic)
    checkpoints.set_aside_after(root, state["step"])
    return state["extra"]


def restore(engine: PolicyEngine, folder: Path, critic: Critic | None = None) -> dict[str, Any]:
    """Bring policy and critic to the checkpoint in ``folder``; returns its state.

    Raises ``ValueError`` when it was written by another number of ranks or ZeRO stage,
    with a critic where there is none now or the other way round, or with other adapters.
    """
    state = json.loads((folder / checkpoints.STATE).read_text(encoding="utf-8"))
    here = (engine.ranks.size, engine.cfg.learner.zero_stage)
    if (state["ranks"], state["zero_stage"]) != here:
        raise ValueError(
            f"{folder} was written by {state['ranks']} ranks under ZeRO-{state['zero_stage']}, this run has {here[0]} "
            f"under ZeRO-{here[1]}: set learner.ranks={state['ranks']} learner.zero_stage={state['zero_stage']}"
        )
    if state["critic"] != (critic is not None):
        raise ValueError(
            f"{folder} holds {'a' if critic is None else 'no'} critic and this run has {'none' if critic is None else 'one'}: "
            f"set algorithm.advantage.type as it was, or start with another run.dir"
        )
    if state.get("lora") != _lora(engine):
        raise ValueError(
            f"{folder} was written with model.lora={state.get('lora')} and this run has {_lora(engine)}: adapters fit "
            "only each other and the model under them; set model.lora and model.path as they were"
        )
    engine.load_state(folder)
    if critic:
        critic.load_state(folder)
    return state


def _lora(engine: PolicyEngine) -> dict[str, Any] | None:
    """What adapters in a checkpoint fit: the options and the model under them, which is not in it."""
    model = engine.cfg.model
    return model.lora.model_dump() | {"base": model.path} if model.lora else None
