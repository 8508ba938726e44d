"""Checkpoints: written aside, renamed, and only then pointed to.

``latest`` names the checkpoint in use. Whenever the process dies, it names a whole one:
the previous one until the very last rename, and that is deleted only after it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from learner.policy.critic import Critic
from learner.policy.engine import PolicyEngine
from learner.run.durable import fresh_folder_beside, replace_folder, replace_text

LATEST = "latest"
STATE = "state.json"


def save_checkpoint(
    engine: PolicyEngine, root: Path, step: int, extra: dict[str, Any], keep: int, critic: Critic | None = None
) -> Path:
    """Write ``root/checkpoint-<step>`` with the state of policy and critic and ``extra`` (JSON values).

    Both are in one folder, so no kill can leave them of different steps. Keeps the ``keep`` newest checkpoints. With several ranks ``root`` must be a folder
    that all of them see. Returns the checkpoint's folder.
    """
    target = root / f"checkpoint-{step}"
    aside = fresh_folder_beside(target)
    engine.save_state(aside)
    if critic:
        critic.save_state(aside)
    layout = {"step": step, "ranks": engine.ranks.size, "zero_stage": engine.cfg.learner.zero_stage}
    layout["critic"] = critic is not None
    (aside / STATE).write_text(json.dumps(layout | {"extra": extra}), encoding="utf-8")
    replace_folder(aside, target)
    replace_text(root / LATEST, target.name)
    for old in _by_step(root)[:-keep]:
        if old != target:
            shutil.rmtree(old)
    return target


def load_checkpoint(engine: PolicyEngine, root: Path, critic: Critic | None = None) -> dict[str, Any] | None:
    """Bring policy and critic to the state of the latest checkpoint. Returns its ``extra``.

    None if there is no checkpoint yet. Raises ``ValueError`` when it was written by
    another number of ranks or ZeRO stage, or with a critic where there is none now or the
    other way round, or when what ``latest`` names is gone.
    """
    pointer = root / LATEST
    if not pointer.exists():
        return None
    folder = root / pointer.read_text(encoding="utf-8").strip()
    if not (folder / STATE).is_file():
        raise ValueError(f"{pointer} names {folder.name}, which is not there; point it to one of {_names(root)}")
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    here = (engine.ranks.size, engine.cfg.learner.zero_stage)
    if (state["ranks"], state["zero_stage"]) != here:
        raise ValueError(
            f"{folder} was written by {state['ranks']} ranks under ZeRO-{state['zero_stage']}, this run has {here[0]} "
            f"under ZeRO-{here[1]}: set learner.ranks={state['ranks']} learner.zero_stage={state['zero_stage']}"
        )
    if state.get("critic", False) != (critic is not None):
        raise ValueError(
            f"{folder} holds {'a' if critic is None else 'no'} critic and this run has {'none' if critic is None else 'one'}: "
            f"set algorithm.advantage.type as it was, or start with another run.dir"
        )
    engine.load_state(folder)
    if critic:
        critic.load_state(folder)
    return state["extra"]


def _by_step(root: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = [p for p in root.glob("checkpoint-*") if p.suffix not in (".tmp", ".old")]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def _names(root: Path) -> str:
    return ", ".join(path.name for path in _by_step(root)) or "none: start with another run.dir"
