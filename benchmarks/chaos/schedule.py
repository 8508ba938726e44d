"""What is done to a run, and when: drawn from a seed, so that a bad day can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "stop", "garbage"]
ROLES = ("actor", "server", "learner")
#: Seconds that a stopped process stands still: longer than an actor may be silent, shorter than a person's patience.
STOP_S = (6.0, 15.0)
GARBAGE_S = 3.0
#: Steps at the start without a blow, so that there is something to hurt, and at the end, so that there is time to mend.
QUIET_STEPS = 2
#: Share of the kills of a server that hit its engine and not its API server.
ENGINE_SHARE = 0.4


@dataclass(frozen=True)
class Blow:
    """One thing done. It falls ``delay_s`` seconds after the policy has reached version ``at``.

    seconds: how long a stop or a burst of garbage lasts. engine: of a server, its engine core.
    """

    at: int
    delay_s: float
    kind: Kind
    role: str
    seconds: float = 0.0
    engine: bool = False

    def __str__(self) -> str:
        what = {"kill": "kill -9", "stop": f"stop for {self.seconds:.0f} s", "garbage": "garbage"}[self.kind]
        return (
            f"version {self.at:>3} + {self.delay_s:.1f} s: {what}, {self.role}{' (engine core)' if self.engine else ''}"
        )


def draw(kills: int, steps: int, seed: int) -> list[Blow]:
    """``kills`` kill -9, evenly over the roles and the run's ``steps``, with a stop and a burst of garbage after every third.

    Raises ValueError where the steps are too few to hold them.
    """
    if steps < 2 * QUIET_STEPS + 1:
        raise ValueError(f"at least {2 * QUIET_STEPS + 1} steps are needed, not {steps}")
    rng = random.Random(seed)
    kinds: list[tuple[Kind, str]] = [("kill", role) for role in _evenly(rng, kills)]
    others = kills // 3
    extra: list[tuple[Kind, str]] = [("stop", role) for role in _evenly(rng, others)] + [
        ("garbage", "gateway")
    ] * others
    for blow in extra:
        kinds.insert(rng.randrange(len(kinds) + 1), blow)
    span = steps - 2 * QUIET_STEPS
    return [
        Blow(
            at=QUIET_STEPS + place * span // len(kinds),
            delay_s=rng.uniform(0.0, 4.0),  # about a step: blows fall into every phase of one
            kind=kind,
            role=role,
            seconds={"kill": 0.0, "stop": rng.uniform(*STOP_S), "garbage": GARBAGE_S}[kind],
            engine=role == "server" and rng.random() < ENGINE_SHARE,
        )
        for place, (kind, role) in enumerate(kinds)
    ]


def _evenly(rng: random.Random, count: int) -> list[str]:
    roles = [ROLES[number % len(ROLES)] for number in range(count)]
    rng.shuffle(roles)
    return roles
