"""``--role replay RUN [VERSION] [section.field=value …]``: train on the recorded groups of a run again.

No server, no actor: from one of its checkpoints (or from the start) the run's own batches go through the
run's own update. Printed beside each other: what came out now, and what the run wrote down then. Under the
same configuration on the same machine all of it is equal, bit for bit; with an option changed, the
difference is what that option does to these very batches. The run's folder is read only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.load import ConfigError, dump_config, load_config
from configs.schema import Config
from learner.gateway.recorded import RecordedGroups
from learner.run import checkpoints
from learner.run.folder import RunFolder, RunFolderError

if TYPE_CHECKING:
    from torch import Tensor

    from learner.policy.critic import Critic
    from learner.policy.engine import PolicyEngine

#: Figures that are compared, where both sides have them: name in the record → title.
FIGURES = {
    "loss": "loss", "grad_norm": "grad norm", "clip_fraction": "clipped",
    "value_loss": "value loss", "value_grad_norm": "value grad norm",
}  # fmt: skip


class ReplayError(ValueError):
    """Nothing can be replayed so; the message says what can."""


@dataclass(slots=True)
class Replayed:
    """One step: its number, the figures now, and those that the run recorded (None where it recorded none)."""

    step: int
    now: dict[str, Any]
    then: dict[str, Any] | None

    @property
    def gaps(self) -> dict[str, float]:
        """Relative difference of each figure; empty where all are equal."""
        both = [name for name in FIGURES if self.then and name in self.then and name in self.now]
        return {name: gap(self.now[name], self.then[name]) for name in both if self.now[name] != self.then[name]}


def gap(now: float | None, then: float | None) -> float:
    """|now − then| relative to the larger of both; infinite where one of them is no number (null in the record)."""
    if now is None or then is None:
        return float("inf")
    return abs(now - then) / max(abs(now), abs(then))


def main(words: list[str], dry_run: bool) -> int:
    try:
        path, version, config = _read(words)
        if dry_run:
            print(dump_config(config), end="")
            return 0
        with RecordedGroups(path / "ledger.sqlite") as recorded:
            start, steps = plan(path, recorded.steps(), version)
            return _replay(path, config, recorded, start, steps)
    except (ConfigError, FileNotFoundError, RunFolderError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def plan(path: Path, kept: list[int], version: int | None) -> tuple[int, list[int]]:
    """(version to start from, steps to replay): all steps after it, in a row, whose groups are kept.

    kept: those steps. version: the start that is asked for; else the earliest that there is.
    Raises ``ReplayError``, which names the starts that there are.
    """
    known = [0, *(step for step in checkpoints.steps(path / "checkpoints") if step)]
    starts = [start for start in known if start + 1 in kept]
    if not starts or (version is not None and version not in starts):
        have = f"there are {', '.join(map(str, starts))}" if starts else "there is none"
        raise ReplayError(
            f"{path}: a replay starts at version 0 or a kept checkpoint, and needs the groups of the step after it: "
            f"{have}. checkpoint.keep says how many checkpoints are kept, each with the groups after it"
        )
    start = starts[0] if version is None else version
    end = start
    while end + 1 in kept:
        end += 1
    return start, list(range(start + 1, end + 1))


def _read(words: list[str]) -> tuple[Path, int | None, Config]:
    if not words or "=" in words[0]:
        raise ReplayError("name the run's folder: python run.py --role replay runs/quickstart")
    path, rest = Path(words[0]), words[1:]
    if not (path / "config.yaml").is_file():
        raise ReplayError(f"{path} is not the folder of a run: there is no config.yaml")
    version = int(rest.pop(0)) if rest and rest[0].isdecimal() else None
    config = load_config(path / "config.yaml", rest)
    if config.algorithm.dynamic_sampling.rounds:
        raise ReplayError(
            "algorithm.dynamic_sampling fills a batch in rounds, and their order is not kept: not to be replayed"
        )
    return path, version, config


def _replay(path: Path, config: Config, recorded: RecordedGroups, start: int, steps: list[int]) -> int:
    from learner.policy.checkpoint import restore
    from learner.policy.critic import Critic
    from learner.policy.engine import PolicyEngine

    engine = PolicyEngine(config)
    critic = Critic.beside(engine)
    if int(os.environ.get("RANK", 0)) > 0:
        engine.follow(critic=critic)
        return 0
    try:
        root = path / "checkpoints"
        if start:
            restore(engine, checkpoints.path_of(root, start), critic)
        print(f"from version {start}, {len(steps)} steps; in brackets what the run recorded", flush=True)
        done = []
        for step in replay(config, engine, critic, recorded, steps, path):
            print(_line(step), flush=True)
            done.append(step)
        print(_verdict(done, start))
        if steps[-1] in checkpoints.steps(root):
            now = engine.snapshot()
            restore(engine, checkpoints.path_of(root, steps[-1]), critic)
            print(_same_weights(now, engine.snapshot(), steps[-1]))
    finally:
        engine.close()
    return 0


def replay(
    config: Config, engine: PolicyEngine, critic: Critic | None, recorded: RecordedGroups, steps: list[int], path: Path
) -> Iterator[Replayed]:
    """Update ``engine`` and ``critic``, in their state before ``steps``, with the groups of one step after another.

    path: the run's folder, for what it recorded.
    """
    from learner.update import update

    records = {record["step"]: record for record in RunFolder(path).read_metrics() if "eval" not in record}
    for step in steps:
        done = update(config, engine, critic, recorded.groups(step), step - 1)
        yield Replayed(step, done.metrics, records.get(step))


def _line(step: Replayed) -> str:
    parts = [f"step {step.step:>5}"]
    for name, title in FIGURES.items():
        if name in step.now:
            then = (step.then or {}).get(name)
            parts.append(f"{title} {step.now[name]:.6g} ({'–' if then is None else format(then, '.6g')})")
    if step.then is None:
        return "  ".join([*parts, "not recorded: the run was killed before"])
    gaps = step.gaps
    return "  ".join([*parts, f"differs by {max(gaps.values()):.1e}" if gaps else "equal"])


def _verdict(done: list[Replayed], start: int) -> str:
    compared = [step for step in done if step.then is not None]
    different = [step for step in compared if step.gaps]
    if not different:
        return f"{len(compared)} steps from version {start}: equal to what the run recorded, bit for bit"
    worst = max(max(step.gaps.values()) for step in different)
    first = different[0]
    return (
        f"{len(different)} of {len(compared)} steps differ, first step {first.step} in {', '.join(first.gaps)}; "
        f"by {worst:.1e} of the larger at most"
    )


def _same_weights(now: list[tuple[str, Tensor]], then: list[tuple[str, Tensor]], step: int) -> str:
    moved = [float((a - b).abs().max()) for (_, a), (_, b) in zip(now, then, strict=True)]
    if not any(moved):
        return f"weights: those of checkpoint-{step}, bit for bit"
    return f"weights: {sum(map(bool, moved))} of {len(moved)} tensors differ from checkpoint-{step}, by {max(moved):.1e} at most"
