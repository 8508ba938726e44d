"""Question sets over a world, named after the public sets that they resemble.

``hotpot``: two-hop chains. ``wiki2``: comparisons of two entities, and questions about the winner
of a comparison. ``musique``: chains of three and four hops, for evaluation only.

No question can be answered early: exactly one of the passages needed states the answer, and neither
the question nor a title does (a plain comparison names its two candidates, by nature).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from envs.world.generator import RELATIONS, TIME, Entity
from envs.world.program import EARLIER, LATER, Chain, Program, chain, run

DATASETS = ("hotpot", "wiki2", "musique")
#: Questions a set, by split; musique has none to train on.
COUNTS = {"train": {"hotpot": 5000, "wiki2": 5000, "musique": 0}, "heldout": dict.fromkeys(DATASETS, 600)}
#: Shares of the kinds of wiki2 questions.
WIKI2_SHARES = {"comparison": 0.35, "compare_then_bridge": 0.45, "bridge_then_compare": 0.20}


@dataclass(frozen=True)
class Question:
    """One task. ``answers``: accepted strings, the canonical one first; ``gold_titles``: the passages
    needed, in order; ``hops``: how many relations a chain follows, or passages a comparison needs."""

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    gold_titles: tuple[str, ...]
    hops: int
    kind: str
    program: Program = field(repr=False)


#: How the last relation is asked of a noun phrase; ``{x}`` is its place.
ASK: dict[str, tuple[str, ...]] = {
    "director": ("Who directed {x}?", "Who is {x}'s director?"),
    "star": ("Who starred in {x}?", "Who is {x}'s star?"),
    "studio": ("Which company produced {x}?", "What is {x}'s studio?"),
    "author": ("Who wrote {x}?", "Who is {x}'s author?"),
    "publisher": ("Which company published {x}?", "What is {x}'s publisher?"),
    "spouse": ("Who is {x} married to?", "Who is {x}'s spouse?"),
    "birthplace": ("Where was {x} born?", "What is {x}'s birthplace?"),
    "employer": ("Which company does {x} work for?", "What is {x}'s employer?"),
    "birthyear": ("When was {x} born?", "In what year was {x} born?"),
    "founder": ("Who founded {x}?", "Who is {x}'s founder?"),
    "city": ("Where is {x} based?", "What is {x}'s city?"),
    "founding": ("When was {x} founded?", "In what year was {x} founded?"),
    "year": ("When did {x} appear?", "In what year did {x} appear?"),
    "mayor": ("Who governs {x}?", "Who is {x}'s mayor?"),
    "country": ("Which country is {x} in?", "What is {x}'s country?"),
    "capital": ("What is the capital of {x}?", "What is {x}'s capital?"),
    "president": ("Who leads {x}?", "Who is {x}'s president?"),
}
LEADS = ("", "", "", "Tell me: ", "Please find out: ", "Quick question: ")

#: How a comparison speaks of entities of a kind: (words for earlier, words for later).
COMPARE: dict[str, tuple[str, str]] = {
    "film": ("Which film was released earlier", "Which film was released later"),
    "book": ("Which book was published earlier", "Which book was published later"),
    "person": ("Who is older", "Who is younger"),
    "organisation": ("Which company was founded earlier", "Which company was founded later"),
}
WINNER: dict[str, tuple[str, str]] = {
    "film": ("the earlier film", "the later film"),
    "book": ("the earlier book", "the later book"),
    "person": ("the older person", "the younger person"),
    "organisation": ("the earlier company", "the later company"),
}


def phrase(entity: str, relations: Iterable[str]) -> str:
    """``Amber Falcon's director's spouse``."""
    return entity + "".join(f"'s {r}" for r in relations)


def ask(subject: str, relation: str, rng: random.Random, leads: tuple[str, ...] = LEADS) -> str:
    """A question for ``relation`` of a noun phrase, after one of the lead-ins."""
    lead, text = rng.choice(leads), rng.choice(ASK[relation]).format(x=subject)
    return lead + (text[0].lower() + text[1:] if lead else text)


def build_questions(entities: dict[str, Entity], dataset: str, split: str, seed: int) -> list[Question]:
    """All questions of a set, distinct, in a fixed random order."""
    rng = random.Random(f"questions/{dataset}/{split}/{seed}")
    builder = _Builder(entities, dataset, split, rng)
    wanted = COUNTS[split][dataset]
    found: dict[str, Question] = {}
    for question in builder.stream():
        if len(found) >= wanted:
            break
        found.setdefault(str(question.program), question)
    return list(found.values())


class _Builder:
    """Draws programs at random, drops those that can be answered early, and puts the rest in words."""

    def __init__(self, entities: dict[str, Entity], dataset: str, split: str, rng: random.Random):
        self.entities, self.dataset, self.split, self.rng = entities, dataset, split, rng
        self.names = list(entities)
        self.by_kind: dict[str, list[str]] = {}
        for name, entity in entities.items():
            self.by_kind.setdefault(entity.kind, []).append(name)
        self.made = 0

    def stream(self) -> Iterator[Question]:
        """Endless valid questions of the set."""
        kinds: dict[str, tuple[float, Callable[[], Question | None]]] = {
            "hotpot": {"bridge": (1.0, lambda: self.bridge(2))},
            "musique": {"bridge3": (0.5, lambda: self.bridge(3)), "bridge4": (0.5, lambda: self.bridge(4))},
            "wiki2": {kind: (share, getattr(self, kind)) for kind, share in WIKI2_SHARES.items()},
        }[self.dataset]
        shares, makers = zip(*kinds.values())
        while True:
            maker = self.rng.choices(makers, shares)[0]
            question = None
            while question is None:
                question = maker()
            yield question

    def bridge(self, hops: int) -> Question | None:
        """``hops`` relations followed one after the other."""
        start = self.rng.choice(self.names)
        relations = self.walk(start, hops)
        if relations is None:
            return None
        text = ask(phrase(start, relations[:-1]), relations[-1], self.rng)
        return self.finish(f"bridge{hops}", text, chain(start, *relations), hops)

    def comparison(self) -> Question | None:
        """Which of two entities of a kind came earlier or later?"""
        kind, a, b, order = self.pair()
        words = COMPARE[kind][order == LATER]
        return self.finish("comparison", f"{words}, {a} or {b}?", Program((Chain(a), Chain(b)), order), 2)

    def compare_then_bridge(self) -> Question | None:
        """Two relations followed from the winner of a comparison."""
        kind, a, b, order = self.pair()
        tail = self.walk(a, 2)
        if tail is None:
            return None
        winner = phrase(WINNER[kind][order == LATER], tail[:-1])
        program = Program((Chain(a), Chain(b)), order, tail)
        return self.finish("compare_then_bridge", self.of(a, b, winner, tail[-1]), program, 3)

    def bridge_then_compare(self) -> Question | None:
        """The people behind two works or companies are compared; one relation is followed from the winner."""
        sides = []
        for _ in range(2):
            kind = self.rng.choice([k for k in self.by_kind if "person" in RELATIONS[k].values()])
            relation = self.rng.choice([r for r, target in RELATIONS[kind].items() if target == "person"])
            sides.append(Chain(self.rng.choice(self.by_kind[kind]), (relation,)))
        order = self.rng.choice((EARLIER, LATER))
        last = self.rng.choice(list(RELATIONS["person"]))
        winner = WINNER["person"][order == LATER]
        a, b = (phrase(side.entity, side.relations) for side in sides)
        program = Program(tuple(sides), order, (last,))
        return self.finish("bridge_then_compare", self.of(a, b, winner, last), program, 4)

    def of(self, a: str, b: str, winner: str, relation: str) -> str:
        """A question about the winner, after the two candidates."""
        leads = tuple(f"{word} {a} and {b}: " for word in ("Of", "Take", "Consider"))
        return ask(winner, relation, self.rng, leads)

    def pair(self) -> tuple[str, str, str, str]:
        """A kind that has a time, two of its entities, and an order."""
        kind = self.rng.choice(list(TIME))
        a, b = self.rng.sample(self.by_kind[kind], 2)
        return kind, a, b, self.rng.choice((EARLIER, LATER))

    def walk(self, start: str, hops: int) -> tuple[str, ...] | None:
        """Random relations that can be followed ``hops`` times; None where the walk ends too soon."""
        kind, relations = self.entities[start].kind, []
        for hop in range(hops):
            options = [r for r, target in RELATIONS.get(kind, {}).items() if hop == hops - 1 or target != "year"]
            if not options:
                return None
            relations.append(self.rng.choice(options))
            kind = RELATIONS[kind][relations[-1]]
        return tuple(relations)

    def finish(self, kind: str, text: str, program: Program, hops: int) -> Question | None:
        """The question, unless a comparison is a tie, a passage is needed twice or the answer shows early."""
        if program.order and self.tied(program):
            return None
        needed, answer = run(program, self.entities)
        if len(set(needed)) < len(needed):
            return None
        if kind != "comparison":
            stating = [title for title in needed if answer in self.entities[title].attributes.values()]
            if len(stating) > 1 or answer in needed or answer in text:
                return None
        self.made += 1
        entity = self.entities.get(answer)
        answers = entity.names if entity else (answer,)
        name = f"{self.dataset}-{self.split}-{self.made}"
        return Question(name, self.dataset, text, answers, tuple(needed), hops, kind, program)

    def tied(self, program: Program) -> bool:
        """Whether the two sides of a comparison are one entity or of one year."""
        ends = [run(chain(s.entity, *s.relations), self.entities)[1] for s in program.sides]
        years = [self.entities[e].attributes[TIME[self.entities[e].kind]] for e in ends]
        return ends[0] == ends[1] or years[0] == years[1]
