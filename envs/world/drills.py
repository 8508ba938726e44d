"""Drills, whose every other token is taught: looking up, and finding again what followed a word.

A look-up drill shows passages, then many programs, each followed by what the passages make of it. In
an episode only a handful of tokens depend on reading; a policy of under a million parameters learns to
read from these several times faster than from episodes alone.
"""

from __future__ import annotations

import random

from envs.world.generator import RELATIONS, TIME, Entity
from envs.world.program import EARLIER, LATER, Chain, Program, advance, chain
from envs.world.questions import ASK, phrase
from tools.search_index import Passage, format_passages

#: (text, whether its tokens carry loss) in the order of the text.
Segments = list[tuple[str, bool]]


def lookup_drill(world, rng: random.Random, passages: int, programs: int) -> Segments:
    """A tool response with ``passages`` passages, then one long thought of ``programs`` programs.

    A program itself is drawn at random and carries no loss; the states that it is rewritten to do.
    There is no question and no answer: chains may be longer than any question that is trained on.
    """
    shown = _pick(world, rng, passages)
    text = format_passages(Passage("", e.name, world.text_of(e.name)) for e in shown)
    segments: Segments = [
        (
            f"<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>",
            False,
        )
    ]
    for number in range(programs):
        states = _resolve(_draw_program(world, rng, shown), {e.name for e in shown}, world.entities)
        segments.append((f"{';' if number else ''} {states[0]}", False))
        segments += [(f"; {state}", True) for state in states[1:]]
    return segments


def repeating_drill(world, rng: random.Random, phrases: int, times: int) -> Segments:
    """Phrases of a name and up to four relations, then all of them again, ``times`` times, each in a new order.

    Which phrase comes next cannot be known, so its first word carries no loss. All that follows it can
    only be found where that word stood before: this drill makes the circuit that every copy needs
    (induction heads; Olsson et al. 2022), which episodes alone form slowly and badly.
    """
    drawn = [
        phrase(name, rng.sample(list(ASK), rng.choice((0, 0, 1, 2, 3, 4)))) for name in rng.sample(world.names, phrases)
    ]
    segments: Segments = [("<|im_start|>assistant\n<think>", False)]
    for turn in range(1 + times):
        for text in rng.sample(drawn, phrases):
            first, rest = text.split(" ", 1)
            segments += [(f" {first}", False), (f" {rest};", turn > 0)]
    return segments


def _pick(world, rng: random.Random, count: int) -> list[Entity]:
    """Random entities; from two on, two of one kind that has a time, so that they can be compared."""
    names = rng.sample(world.names, count)
    if count > 1:
        kind = rng.choice(list(TIME))
        names[:2] = rng.sample([n for n in world.names if world.entities[n].kind == kind], 2)
    names = list(dict.fromkeys(names))
    rng.shuffle(names)
    return [world.entities[name] for name in names]


def _resolve(program: Program, readable: set[str], entities: dict[str, Entity]) -> list[Program]:
    """The program and its later states, as far as the passages carry."""
    states = [program]
    while (name := states[-1].pending) in readable:
        side = next(side for side in states[-1].sides if side.year is None)
        if not set(side.relations[:1]) <= set(entities[name].attributes):
            break  # tails are drawn without regard to sense
        states += advance(states[-1], entities)
    return states


def _draw_program(world, rng: random.Random, shown: list[Entity]) -> Program:
    """A comparison of two shown entities, one of the people behind a shown work, or a chain from a shown entity."""
    order, draw = rng.choice((EARLIER, LATER)), rng.random()
    alike = [(a, b) for a in shown for b in shown if a is not b and a.kind == b.kind and a.kind in TIME]
    if alike and draw < 0.6:
        a, b = rng.choice(alike)
        known = a.attributes[TIME[a.kind]] if rng.random() < 0.4 else None
        tail = [rng.choice(list(RELATIONS[a.kind])), rng.choice(list(ASK))][: rng.randint(0, 2)]
        return Program((Chain(a.name, year=known), Chain(b.name)), order, tuple(tail))
    makers = [(e, r) for e in shown for r, kind in RELATIONS[e.kind].items() if kind == "person" and e.kind != "person"]
    if makers and draw < 0.75:
        maker, relation = rng.choice(makers)
        other = world.entities[rng.choice(world.names)]
        sides = [Chain(maker.name, (relation,)), Chain(other.name, (relation,))]
        if other.kind == "person":
            sides = [Chain(other.name, year=other.attributes[TIME["person"]]), sides[0]]
        return Program(tuple(sides), order, (rng.choice(list(RELATIONS["person"])),))
    start = rng.choice(shown)
    tail = rng.choices(list(ASK), k=rng.choice((0, 1, 1, 2, 3)))
    return chain(start.name, rng.choice(list(start.attributes)), *tail)
