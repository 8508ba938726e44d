"""Weights & Biases and trackio beside TensorBoard: they get every record, and can neither hold up nor end a run."""

from __future__ import annotations

import contextlib
import importlib
import logging
import queue
import threading
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from configs.schema import Config
from learner.run.durable import replace_text
from learner.run.scalars import ScalarLog, tags

log = logging.getLogger("rollway.tracking")

#: Records that may wait for a slow service; further ones are dropped, counted and told.
MOST_WAITING = 10_000
#: The longest wait at the end of a run for what is still on its way, seconds.
FINISH_S = 30.0

_id_lock = threading.Lock()


class Tracker(Protocol):
    """Takes the records of metrics.jsonl."""

    def add(self, record: dict[str, Any]) -> None:
        """The record of a step or of an evaluation."""

    def rewind(self, step: int) -> None:
        """A run goes on from ``step``: what was logged after it is undone, and will come again."""

    def close(self) -> None:
        """The run is over, or stopped."""


class TrackerMissing(ValueError):
    """A tracker of ``log.trackers`` is not installed; says what to do."""


def open_trackers(config: Config, folder: Path) -> list[Tracker]:
    """Those of ``log.trackers`` for the run in ``folder``; none loads or sends anything before the first record.

    Raises ``TrackerMissing``.
    """
    names = list(dict.fromkeys(config.log.trackers))
    for name in names:
        if find_spec(name) is None:
            raise TrackerMissing(f"log.trackers: {name} is not installed: pip install {name}, or leave it out")
    makers = {"wandb": _Wandb, "trackio": _Trackio}
    return [
        ScalarLog(folder / "tensorboard") if name == "tensorboard" else Background(name, makers[name](config, folder))
        for name in names
    ]


class Service(Protocol):
    """A tracker's package, as ``Background`` drives it from its one thread. Any call may block or raise."""

    def start(self) -> None: ...

    def log(self, values: dict[str, float], step: int) -> None: ...

    def finish(self) -> None: ...


class Background:
    """A ``Tracker`` that only ever puts records into a queue; a daemon thread hands them to the service.

    Errors are logged once a kind, and the run goes on. A service that cannot be started is given up.
    """

    def __init__(self, name: str, service: Service, finish_s: float = FINISH_S, most_waiting: int = MOST_WAITING):
        self._name, self._service, self._finish_s = name, service, finish_s
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(most_waiting)
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()
        self.dropped = 0

    def add(self, record: dict[str, Any]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"tracker {self._name}", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1
            self._tell("queue", f"is too slow: {self._queue.maxsize} records wait, further ones are dropped")

    def rewind(self, step: int) -> None:
        """Neither service can take a record back: those after ``step`` come twice, under the same step."""

    def close(self) -> None:
        if self._thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(timeout=self._finish_s)
        if self._thread.is_alive():
            log.warning("%s did not finish within %g s; metrics.jsonl has every record", self._name, self._finish_s)
        elif self.dropped:
            log.warning("%s lacks %d records; metrics.jsonl has them", self._name, self.dropped)
        self._thread = None

    def _work(self) -> None:
        try:
            self._service.start()
        except BaseException as error:  # some exit the process where no one is logged in
            self._tell("start", f"is not used, it could not be started: {type(error).__name__}: {error}")
            while self._queue.get(timeout=None) is not None:
                self.dropped += 1
            return
        while (record := self._queue.get(timeout=None)) is not None:
            try:
                self._service.log(dict(tags(record)), int(record.get("step") or 0))
            except Exception as error:
                self.dropped += 1
                self._tell(type(error).__name__, f"refused a record: {type(error).__name__}: {error}")
        try:
            self._service.finish()
        except Exception as error:
            self._tell("finish", f"did not finish: {type(error).__name__}: {error}")

    def _tell(self, kind: str, problem: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s %s (training goes on; told once)", self._name, " ".join(problem.split())[:500])


class _Wandb:
    """Online or offline as WANDB_MODE says; its files are in the run folder. One run, however often it is resumed."""

    def __init__(self, config: Config, folder: Path):
        self._config, self._folder, self._run = config, folder, None

    def start(self) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            project=self._config.log.project,
            name=self._folder.name,
            id=_run_id(self._folder),
            resume="allow",
            dir=str(self._folder),
            config=_public(self._config),
            settings=wandb.Settings(console="off", silent=True, init_timeout=60),
        )
        # Steps of our own: wandb's only ever grow, and an evaluation has the step of a record before it.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def finish(self) -> None:
        self._run.finish()


class _Trackio:
    """Its data base is where TRACKIO_DIR says, else in the user's cache; ``trackio show`` shows it."""

    def __init__(self, config: Config, folder: Path):
        self._config, self._folder, self._run = config, folder, None

    def start(self) -> None:
        trackio = importlib.import_module("trackio")
        self._run = trackio.init(
            project=self._config.log.project,
            name=f"{self._folder.name}-{_run_id(self._folder)}",
            resume="allow",
            config=_public(self._config),
            embed=False,
        )

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def finish(self) -> None:
        self._run.finish()


def _run_id(folder: Path) -> str:
    """The same for every part of a run, and another for every run."""
    path = folder / "tracking-id"
    with _id_lock:  # the threads of both services start at the same time
        if not path.exists():
            replace_text(path, uuid.uuid4().hex[:8])
        return path.read_text(encoding="utf-8")


def _public(config: Config) -> dict[str, Any]:
    """The configuration without ``env.args``: tools may be given keys there, and what is sent cannot be taken back."""
    return config.model_dump(mode="json", exclude={"env": {"args"}, "baselines": True})
