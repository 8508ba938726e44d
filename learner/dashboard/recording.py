"""A run folder as the dashboard saw it: pictures in time, whole or rebuilt from the run's records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from learner.run.folder import RunFolder, RunFolderError
from learner.run.snapshots import FILE, LAST_STEP, Frame, read_snapshots

from .format import finite
from .model import dig

#: Silence of the recorder beyond this is not waited for when a run is played back, seconds.
LONGEST_GAP_S = 30.0


class Recording:
    """frames: what was recorded, oldest first. times: when each is shown, seconds from the first, ascending.

    note: what is missing, for the person.
    """

    def __init__(self, frames: list[Frame], history: list[dict[str, Any]], note: str = ""):
        self.frames = frames
        self.note = note
        self._history = history
        self.times = _times(frames)

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises ``RunFolderError`` with what to do: no run there, nothing recorded, a broken file."""
        if not (path / "config.yaml").is_file():
            raise RunFolderError(f"{path} holds no run (no config.yaml): give the folder that run.dir named")
        folder = RunFolder(path)
        records = folder.read_metrics()
        steps = [record for record in records if "eval" not in record]
        if frames := _kept(read_snapshots(path / FILE)):
            return cls(frames, steps)
        if frames := list(_rebuilt(path, records, folder.read_episodes())):
            return cls(frames, steps, f"no {FILE}: fleet, queue and tools were not recorded")
        raise RunFolderError(f"{path} has nothing to play back yet: its run has not finished a step")

    @property
    def seconds(self) -> float:
        return self.times[-1]

    def snapshot(self, index: int) -> dict[str, Any]:
        """What the learner would have answered at that moment."""
        frame = self.frames[index]
        last = frame.get(LAST_STEP, 0)
        sections = {name: section for name, section in frame.items() if name != LAST_STEP}
        return sections | {"history": [record for record in self._history if record["step"] <= last]}


def _kept(frames: Iterator[Frame]) -> list[Frame]:
    """Without those that a learner took back when it went on from an earlier checkpoint."""
    kept: list[Frame] = []
    for frame in frames:
        step = dig(frame, "run", "step")
        while kept and step is not None and (dig(kept[-1], "run", "step") or 0) > step:
            kept.pop()
        kept.append(frame)
    return kept


def _times(frames: list[Frame]) -> list[float]:
    times, before = [], None
    for frame in frames:
        now = finite(dig(frame, "run", "now"))
        gap = now - before if now is not None and before is not None else 0.0
        times.append((times[-1] if times else 0.0) + min(max(gap, 0.0), LONGEST_GAP_S))
        before = now if now is not None else before
    return times


def _rebuilt(path: Path, records: list[dict[str, Any]], episodes: list[dict[str, Any]]) -> Iterator[Frame]:
    """For a run without ``snapshots.jsonl``: a picture a step, without the fleet, which left no trace."""
    config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {}
    run = {
        "id": path.resolve().name,
        "dir": str(path),
        "started_at": 0.0,
        "steps": dig(config, "run", "steps"),
        "model": dig(config, "model", "path"),
        "staleness_bound": config.get("staleness"),
    }
    latest = {episode["step"]: _view(episode) for episode in episodes if episode.get("kind") == "train"}
    evals: list[dict[str, Any]] = []
    for record in records:
        if "eval" in record:
            evals = [*evals, record["eval"]]
            continue
        step = record["step"]
        now = finite(record.get("time_s")) or float(step)
        moment = {"step": step, "version": record.get("version"), "phase": "push", "phase_since": now, "now": now}
        yield {"run": run | moment, "evals": evals, "latest": latest.get(step, {}), LAST_STEP: step}
    if (path / "summary.json").is_file() and records:
        end = {"step": step, "version": step, "phase": "done", "phase_since": now, "now": now}
        yield {"run": run | end, "evals": evals, "latest": latest.get(step, {}), LAST_STEP: step}


def _view(episode: dict[str, Any]) -> dict[str, Any]:
    """An episode of ``episodes.jsonl`` as the learner shows its latest one."""
    named = ("step", "task_id", "dataset", "reward", "metrics", "finish", "tool_calls")
    segments = [
        {"role": s["role"], "text": s["text"], "version": s["versions"], "reward": s["reward"]}
        for s in episode.get("segments") or []
    ]
    return {name: episode.get(name) for name in named} | {"segments": segments}
