"""Which actors there are, what each of them holds, and who is to get the next lease."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from protocol.messages import Hello, Lease
from protocol.trajectory import NO_VERSION

#: Actors that a description names; of more, those that were silent for longest.
_NAMED = 8


@dataclass(slots=True)
class Held:
    """A lease and its holder. ``unit``: seq of a training unit, or index of an evaluation task."""

    lease: Lease
    unit: int
    actor_id: str
    issued: float
    oldest: int = NO_VERSION

    @property
    def lease_id(self) -> str:
        return self.lease.lease_id

    @property
    def is_eval(self) -> bool:
        return self.lease.purpose == "eval"


@dataclass(slots=True)
class Actor:
    """``capacity`` and ``stats`` as last reported; ``episodes`` is the sum over its leases."""

    hello: Hello
    seen: float
    capacity: int = 0
    episodes: int = 0
    leases: set[str] = field(default_factory=set)
    stats: dict[str, Any] = field(default_factory=dict)


class LeaseIds:
    """Names of leases: unique over restarts and runs, and a training lease's tells its unit.

    So a group that comes after its lease is void, or after the learner was restarted, still
    finds its place, and one of another run does not.
    """

    def __init__(self, run_id: str, boot: int) -> None:
        self._run_id, self._boot = run_id, boot
        self._issued = 0
        self._ours = re.compile(re.escape(run_id) + r"\.(train|eval)(\d{1,18})\.\d+\.\d+", re.ASCII)

    def new(self, unit: int, purpose: str) -> str:
        self._issued += 1
        return f"{self._run_id}.{purpose}{unit}.{self._boot}.{self._issued}"

    def seq(self, lease_id: str) -> int | None:
        """The unit of a training lease of this run; None for any other name."""
        match = self._ours.fullmatch(lease_id)
        return int(match[2]) if match and match[1] == "train" else None

    def ours(self, lease_id: str) -> bool:
        """Whether any boot of this run may have issued the lease."""
        return self._ours.fullmatch(lease_id) is not None


class Roster:
    """Actors and their leases. ``group_size``: episodes of one training lease."""

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self.actors: dict[str, Actor] = {}
        self.leases: dict[str, Held] = {}  # in the order of their issue
        self._of_unit: dict[int, str] = {}  # seq of a leased training unit → its lease
        self._no_room_for: int | None = None  # so many episodes nobody could take, and nobody has got room since

    def heard(self, actor: Actor, capacity: int, stats: dict[str, Any]) -> None:
        """What an actor says of itself."""
        if capacity != actor.capacity:
            self._no_room_for = None
        actor.capacity, actor.stats = capacity, stats

    def grant(self, held: Held) -> None:
        actor = self.actors[held.actor_id]
        actor.leases.add(held.lease_id)
        actor.episodes += held.lease.group_size
        self.leases[held.lease_id] = held
        if not held.is_eval:
            self._of_unit[held.unit] = held.lease_id

    def drop(self, held: Held) -> None:
        actor = self.actors[held.actor_id]
        actor.leases.remove(held.lease_id)
        actor.episodes -= held.lease.group_size
        self._no_room_for = None
        del self.leases[held.lease_id]
        if not held.is_eval:
            del self._of_unit[held.unit]

    def of_unit(self, seq: int) -> Held | None:
        """The lease under which a training unit is being worked on."""
        return self.leases.get(self._of_unit.get(seq, ""))

    def of_actor(self, actor_id: str) -> list[Held]:
        return [self.leases[lease_id] for lease_id in sorted(self.actors[actor_id].leases)]

    def of_purpose(self, purpose: str) -> list[Held]:
        return [held for held in self.leases.values() if held.lease.purpose == purpose]

    @property
    def training(self) -> int:
        """Training leases out."""
        return len(self._of_unit)

    def freest(self, episodes: int) -> str | None:
        """The actor with the least work among those that have room for ``episodes`` more.

        It is asked for after every message, and mostly all are at work: that is remembered.
        """
        if self._no_room_for is not None and episodes >= self._no_room_for:
            return None
        rooms = (
            (actor.episodes, actor_id)
            for actor_id, actor in self.actors.items()
            if actor.episodes + episodes <= actor.capacity * self._group_size
        )
        chosen = min(rooms, default=(0, None))[1]
        if chosen is None:
            self._no_room_for = episodes
        return chosen

    def expired(self, now: float, timeout: float) -> Iterator[Held]:
        """Leases issued more than ``timeout`` seconds ago."""
        for held in list(self.leases.values()):
            if now - held.issued <= timeout:
                return
            yield held

    def describe(self, now: float) -> str:
        if not self.actors:
            return "no actor is connected: start one with `python run.py --role actor`"
        told = sorted(self.actors.items(), key=lambda item: (item[1].seen, item[0]))[:_NAMED]
        parts = [
            f"{len(actor.leases)} leased to {actor_id} (last heard {now - actor.seen:.0f} s ago)"
            for actor_id, actor in sorted(told)
        ]
        if others := len(self.actors) - len(told):
            leases = len(self.leases) - sum(len(actor.leases) for _, actor in told)
            parts.append(f"{leases} leased to {others} other actors, heard since")
        return ", ".join(parts)

    @property
    def tokens(self) -> int:
        """Tokens that the actors say they have sampled so far."""
        told = (actor.stats.get("tokens") for actor in self.actors.values())
        return sum(tokens for tokens in told if isinstance(tokens, int))

    def rows(self, now: float) -> list[dict[str, Any]]:
        """One row an actor for the dashboard; ``age_s`` since it was last heard.

        capacity: groups that it can work on; held: leases of both purposes; evaluating: how many
        of them are for an evaluation, whose leases are one episode and not a group.
        """
        return [
            {
                "id": actor_id,
                "host": actor.hello.host,
                "pid": actor.hello.pid,
                "age_s": now - actor.seen,
                "held": len(actor.leases),
                "evaluating": sum(self.leases[lease_id].is_eval for lease_id in actor.leases),
                "capacity": actor.capacity,
                "stats": actor.stats,
            }
            for actor_id, actor in sorted(self.actors.items())
        ]
