"""Deals the blows of a schedule and measures how long each takes to be made good."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from benchmarks.attackers import Crowd, Turncoat, make_attackers
from benchmarks.chaos.schedule import Blow
from benchmarks.local_run import LocalRun
from protocol.limits import Limits

#: What is not made good within this many seconds counts as not recovered.
RECOVERY_S = 600.0
_POLL_S = 0.2


@dataclass
class Wound:
    """A blow that fell. recovered_s: seconds from a kill, or from the end of a stop; None if it was not made good."""

    blow: Blow
    target: str
    recovered_s: float | None = None
    frames: int = 0

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


class Storm:
    """``rage`` goes through the schedule; ``say`` is told each blow and each recovery in a line."""

    def __init__(self, run: LocalRun, limits: Limits, seed: int, say: Callable[[str], None]):
        self._run, self._limits, self._say = run, limits, say
        self._rng = random.Random(f"targets {seed}")
        self.wounds: list[Wound] = []

    def rage(self, blows: list[Blow], until: float) -> None:
        """Returns when all have fallen and are made good, the run is over, or the monotonic clock says ``until``."""
        for blow in blows:
            if not self._run.await_version(blow.at, until - time.monotonic()):
                return
            time.sleep(blow.delay_s)
            match blow.kind:
                case "garbage":
                    self._throw(blow)
                case "kill" | "stop":
                    self._strike(blow)

    def _strike(self, blow: Blow) -> None:
        targets = self._run.processes(blow.role)
        if not targets:
            self._say(f"{blow}: nobody there to hit")
            return
        name = self._rng.choice(sorted(targets))
        process = victim = targets[name]
        if blow.engine:
            victim = _engine(process)
        healed = self._healed(blow, name, process.pid)
        place = self._run.log_size()
        began = time.monotonic()
        try:
            if blow.kind == "kill":
                victim.kill()
            else:
                victim.suspend()
                time.sleep(blow.seconds)
                place, began = self._run.log_size(), time.monotonic()
                victim.resume()
        except psutil.NoSuchProcess:
            self._say(f"{blow}: {name} was gone by itself")
            return
        wound = Wound(blow, name)
        self.wounds.append(wound)
        self._say(f"{blow} → {name}")
        while time.monotonic() - began < RECOVERY_S and self._run.exit_code is None:
            if healed(self._run.snapshot(), place):
                wound.recovered_s = round(time.monotonic() - began, 1)
                break
            time.sleep(_POLL_S)
        self._say(
            f"    made good after {wound.recovered_s} s" if wound.recovered_s is not None else "    NOT made good"
        )

    def _healed(self, blow: Blow, name: str, pid: int) -> Callable[[dict[str, Any], int], bool]:
        """(snapshot, end of the learner's log at the blow) → is all as it was?

        An actor holds a lease again, a server has the current weights and is listed, the learner has trained a step.
        """
        killed = blow.kind == "kill"

        def actor(snapshot: dict[str, Any], _: int) -> bool:
            rows = [row for row in snapshot.get("actors") or () if row["id"] == name]
            return any(row["held"] and (row["pid"] != pid) == killed and row["age_s"] < 3 for row in rows)

        def server(snapshot: dict[str, Any], _: int) -> bool:
            version = self._run.weight_version()
            now = self._run.processes("server").get(name)
            fresh = now is not None and (now.pid != pid) == killed
            rows = snapshot.get("servers") or ()
            current = [row["url"] for row in rows if row["state"] == "current" and str(row["version"]) == version]
            return fresh and version is not None and version.isdigit() and bool(current)

        def learner(_: dict[str, Any], place: int) -> bool:
            return self._run.trained_since(place)

        return {"actor": actor, "server": server, "learner": learner}[blow.role]

    def _throw(self, blow: Blow) -> None:
        """Garbage of every kind, from peers that are no actors: those would take work and are another benchmark's."""
        address = f"tcp://127.0.0.1:{self._run.port}"
        villains = make_attackers(address, self._run.port, self._limits, self._rng.randrange(10**6))
        villains = [v for v in villains if not isinstance(v, (Turncoat, Crowd)) or v.close()]
        wound, began = Wound(blow, "gateway"), time.monotonic()
        while time.monotonic() - began < blow.seconds:
            wound.frames += sum(villain.act() for villain in villains)
            time.sleep(0.01)
        for villain in villains:
            villain.close()
        self.wounds.append(wound)
        self._say(f"{blow}: {wound.frames} frames")


def _engine(server: psutil.Process) -> psutil.Process:
    """The engine core of an API server; the API server itself where it has none of its own."""
    cores = [
        child for child in server.children(recursive=True) if "EngineCore" in child.name() + " ".join(child.cmdline())
    ]
    return cores[0] if cores else server
