"""What is left to find out, as a short phrase that is rewritten step by step.

A *program* is the question in the notation of the agent's thoughts. It names an entity and the
relations to follow, or compares two such chains in time and goes on from the winner:

    Amber Falcon's director's birthplace
    earlier ( Amber Falcon's director or Blue Heron's author)'s spouse

Each search resolves the first open part: the entity and its first relation give way to the value,
and everything behind is copied. The rule is local: it does not depend on how much is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from envs.world.generator import TIME, Entity

EARLIER, LATER = "earlier", "later"


@dataclass(frozen=True)
class Chain:
    """An entity and the relations still to follow; ``year`` once its time is known for a comparison."""

    entity: str
    relations: tuple[str, ...] = ()
    year: str | None = None

    def __str__(self) -> str:
        path = "".join(f"'s {r}" for r in self.relations)
        return f"{self.year} {self.entity}{path}" if self.year else f"{self.entity}{path}"


@dataclass(frozen=True)
class Program:
    """One chain, or two chains compared by ``order`` with the relations ``tail`` applied to the winner."""

    sides: tuple[Chain, ...]
    order: str | None = None
    tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.order is None:
            return str(self.sides[0])
        tail = "".join(f"'s {r}" for r in self.tail)
        # The space inside the bracket keeps one before every name (see learner/tiny.py). No passage
        # says "or": what follows it can be found again by that word alone.
        return f"{self.order} ( {self.sides[0]} or {self.sides[1]}){tail}"

    @property
    def pending(self) -> str | None:
        """The entity to look up next; None when nothing is left to resolve."""
        if self.order is None:
            return self.sides[0].entity if self.sides[0].relations else None
        return next((s.entity for s in self.sides if s.year is None), None)

    @property
    def current(self) -> str:
        """What an impatient agent would answer: the entity reached so far."""
        return self.sides[0].entity


def chain(entity: str, *relations: str) -> Program:
    """The program that follows ``relations`` from ``entity``."""
    return Program((Chain(entity, relations),))


def advance(program: Program, entities: dict[str, Entity]) -> list[Program]:
    """The thoughts after reading the passage of ``program.pending``: one or more rewritten states.

    More than one where the passage read decides a comparison: the winner's own passage has been
    read before, so its first relation is followed at once.
    """
    if program.order is None:
        start = program.sides[0]
        value = entities[start.entity].attributes[start.relations[0]]
        return [Program((Chain(value, start.relations[1:]),))]
    index = next(i for i, s in enumerate(program.sides) if s.year is None)
    side = program.sides[index]
    facts = entities[side.entity]
    if side.relations:
        side = Chain(facts.attributes[side.relations[0]], side.relations[1:])
    else:
        side = replace(side, year=facts.attributes[TIME[facts.kind]])
    sides = tuple(side if i == index else s for i, s in enumerate(program.sides))
    states = [replace(program, sides=sides)]
    if states[-1].pending is None:
        winner = (min if program.order == EARLIER else max)(sides, key=lambda s: s.year or "")
        states.append(Program((replace(winner, relations=program.tail),)))
        if program.tail:
            states += advance(states[-1], entities)
    return states


def run(program: Program, entities: dict[str, Entity]) -> tuple[list[str], str]:
    """Follows a program to its end: the entities looked up, in order, and the answer."""
    looked_up = []
    while (name := program.pending) is not None:
        looked_up.append(name)
        program = advance(program, entities)[-1]
    return looked_up, program.current
