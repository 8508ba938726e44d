"""Scripted episodes: the perfect agent, and the impatient one whose traces warm-start the policy.

Both search for the open entity of their program, rewrite the program after each response and answer
when nothing is left. The impatient agent may also answer while something is left, with the entity it
has reached: it shows every skill, but not the persistence. That is left to reinforcement learning.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from envs.world.generator import RELATIONS
from envs.world.messages import Message, answer, call, rag_prompt, say, think
from envs.world.program import Program, advance, chain
from envs.world.questions import ASK, Question, ask, phrase
from tools.search_index import format_passages

#: Relations for which the impatient agent mostly makes its second search.
PATIENT_RELATIONS = ("birthplace", "employer", "city")


@dataclass(frozen=True)
class Patience:
    """Probabilities to go on searching while something is left.

    ``kept``: after the first response of a chain that ends in one of ``PATIENT_RELATIONS``;
    ``chain``: other chains, first response; ``compare``: inside a comparison; ``later``: after
    two or more responses.
    """

    kept: float = 0.8
    chain: float = 0.35
    compare: float = 0.4
    later: float = 0.4

    def __call__(self, program: Program, searches: int) -> float:
        if searches == 0:
            return 1.0
        if program.order is not None:
            return self.compare
        if searches > 1:
            return self.later
        return self.kept if program.sides[0].relations[-1] in PATIENT_RELATIONS else self.chain


PERFECT: Callable[[Program, int], float] = lambda program, searches: 1.0


def episode(
    question: Question,
    world,
    patience: Callable[[Program, int], float] = PERFECT,
    rng: random.Random | None = None,
    top_k: int = 1,
) -> list[Message]:
    """The chat messages of one scripted episode: user, then assistant and tool in turn.

    Args:
        patience: probability to go on, given the program left and the searches made.
        rng: decides for patience strictly between 0 and 1.
        top_k: passages of one response.
    """
    rng = rng or random.Random(0)
    messages = [say("user", question.question)]
    states, searches = [question.program], 0
    while (query := states[-1].pending) is not None and rng.random() < patience(states[-1], searches):
        messages.append(say("assistant", think(states) + call(query)))
        messages.append(say("tool", world.lookup(query, top_k)))
        searches += 1
        states = advance(states[-1], world.entities)
    program = states[-1]
    guess = program.current
    if program.order is not None and len(program.sides) == 2:
        guess = rng.choice(program.sides).entity
    messages.append(say("assistant", think(states) + answer(guess)))
    return messages


def oracle(question: Question, world, top_k: int = 1) -> list[Message]:
    """A perfect episode: every search made, the gold answer given."""
    return episode(question, world, top_k=top_k)


def opening(question: Question) -> list[Message]:
    """The question and the first turn of every scripted agent: the program in its thought, the first search."""
    first = think([question.program]) + call(question.program.pending or "")
    return [say("user", question.question), say("assistant", first)]


def reading_drill(world, rng: random.Random, top_k: int = 1) -> list[Message]:
    """One relation of one entity: a question, a search, an answer."""
    entity = world.entities[rng.choice(world.names)]
    relation = rng.choice(list(entity.attributes))
    program = chain(entity.name, relation)
    return [
        say("user", ask(entity.name, relation, rng)),
        say("assistant", think([program]) + call(entity.name)),
        say("tool", world.lookup(entity.name, top_k)),
        say("assistant", think(advance(program, world.entities)) + answer(entity.attributes[relation])),
    ]


def wording_drill(world, rng: random.Random) -> list[Message]:
    """A phrase of two to five relations, asked as a question is: the program in the thought, the first search.

    As in ``rewriting_drill`` the relations behind the first are drawn at random, and nothing is answered.
    """
    entity = world.entities[rng.choice(world.names)]
    relations = (rng.choice(list(entity.attributes)), *rng.choices(list(ASK), k=rng.randint(1, 4)))
    text = ask(phrase(entity.name, relations[:-1]), relations[-1], rng)
    return [say("user", text), say("assistant", think([chain(entity.name, *relations)]) + call(entity.name))]


def rewriting_drill(world, rng: random.Random, top_k: int = 1) -> list[Message]:
    """One to three steps of rewriting: a program, a search, the program that is left, and so on.

    The relations followed are the entities' own; behind them stand one to three drawn at random, whether
    or not they make sense: what is practised is to copy what is behind, however long and however late.
    There is no question, and nothing is followed to its end.
    """
    name, followed = rng.choice(world.names), []
    for _ in range(rng.randint(1, 3)):
        options = [r for r, target in RELATIONS[world.entities[name].kind].items() if target != "year"]
        followed.append((name, rng.choice(options)))
        name = world.entities[name].attributes[followed[-1][1]]
    tail = rng.choices(list(ASK), k=rng.randint(1, 3))
    program = chain(followed[0][0], *(relation for _, relation in followed), *tail)
    messages = [say("user", str(program)), say("assistant", think([program]) + call(followed[0][0]))]
    for entity, _ in followed:
        messages.append(say("tool", world.lookup(entity, top_k)))
        (program,) = advance(program, world.entities)
        messages.append(say("assistant", think([program]) + call(program.current)))
    return messages


def rag_example(question: Question, world, top_k: int = 5) -> list[Message]:
    """One retrieval with the question as the query, one thought, the gold answer.

    The thought goes as far as the passages carry; where they do not reach the answer, the policy is
    still shown the gold one, as in ordinary fine-tuning.
    """
    found = world.search(question.question, top_k)
    titles = {passage.title for passage in found}
    states = [question.program]
    while (query := states[-1].pending) is not None and query in titles:
        states += advance(states[-1], world.entities)
    return [
        say("user", rag_prompt(question.question, format_passages(found))),
        say("assistant", think(states) + answer(question.answers[0])),
    ]
