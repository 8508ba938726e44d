"""The built-in world: determinism, separation of the splits, answerable questions, exact traces."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from envs.world import DATASETS, World, load_world, oracle
from envs.world.generator import TIME, generate_entities
from envs.world.names import POOLS, split_of
from envs.world.program import Chain, Program, advance, chain
from envs.world.traces import Patience, episode, rag_example, reading_drill, rewriting_drill, wording_drill
from tools.search_index import Passage, SearchIndex, format_passages, terms

TRAIN_SETS = ("hotpot", "wiki2")
NAME = re.compile(r"(?=\b([A-Z][a-z]+ [A-Z][a-z]+)\b)")  # looks ahead, so that pairs may overlap
ANSWER = re.compile(r"<answer>(.*?)</answer>")


@pytest.fixture(scope="module")
def train() -> World:
    return load_world(0, "train")


@pytest.fixture(scope="module")
def heldout() -> World:
    return load_world(0, "heldout")


# Search


def test_search_finds_the_named_passage_first():
    index = SearchIndex(
        [
            Passage("1", "Nora Marsh", "Works for Apex Works."),
            Passage("2", "Nora Nash", "Married Nora Marsh."),
            Passage("3", "Apex Works", "A company."),
        ]
    )
    found = index.search(" Nora Marsh", 2)
    assert [p.id for p, _ in found] == ["1", "2"]
    assert found[0][1] > found[1][1] > 0


def test_search_without_a_known_word_finds_nothing():
    index = SearchIndex([Passage("1", "Nora Marsh", "Works for Apex Works.")])
    assert index.search("zebra", 3) == []
    assert index.search("", 3) == []
    assert SearchIndex([]).search("zebra", 3) == []
    assert format_passages([]) == "No passage found."


def test_terms_drop_possessives_and_pair_neighbours():
    assert terms("Nora Marsh's spouse") == ["nora", "marsh", "spouse", "nora marsh", "marsh spouse"]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_entity_is_found_by_its_name(split):
    world = load_world(0, split)
    found = world.index.search_many(world.names, 2)
    assert all(name in {p.title for p, _ in hits} for name, hits in zip(world.names, found))


# World


def test_a_seed_gives_one_world():
    a, b, other = World(3, "heldout"), World(3, "heldout"), World(4, "heldout")
    assert a.passages == b.passages != other.passages
    for dataset in DATASETS:
        assert a.questions(dataset) == b.questions(dataset) != other.questions(dataset)


def test_world_is_cached_and_refuses_unknown_names():
    assert load_world(0, "train") is load_world(0, "train")
    with pytest.raises(ValueError, match="unknown split"):
        World(0, "test")
    with pytest.raises(ValueError, match="unknown data set"):
        World(0, "train").questions("squad")


def test_words_are_in_one_pool_only_and_used_by_both_splits():
    words = [w for pool in POOLS.values() for part in pool for w in part]
    assert len(words) == len(set(words))
    for firsts, lasts in POOLS.values():
        for split in ("train", "heldout"):
            pairs = [(i, j) for i in range(len(firsts)) for j in range(len(lasts)) if split_of(i, j) == split]
            assert {i for i, _ in pairs} == set(range(len(firsts)))
            assert {j for _, j in pairs} == set(range(len(lasts)))


def test_no_heldout_entity_is_named_in_training(train, heldout):
    """Neither in the fixed training world nor in one that traces are drawn from."""
    rng = random.Random(0)
    for world in (train, World(1000, "train")):
        assert not set(world.names) & set(heldout.names)
        texts = [f"{p.title} {p.text}" for p in world.passages]
        texts += [q.question for d in TRAIN_SETS for q in world.questions(d)]
        texts += [m["content"] for d in TRAIN_SETS for q in world.questions(d)[:100] for m in oracle(q, world)]
        for drill in (reading_drill, rewriting_drill, wording_drill):
            texts += [m["content"] for _ in range(100) for m in drill(world, rng)]
        pairs = {pair for text in texts for pair in NAME.findall(text)}
        assert set(world.names) <= pairs
        assert not set(heldout.names) & pairs


def test_sizes(train, heldout):
    assert 3000 <= len(train.passages) <= 5000
    assert all(len(train.questions(d)) >= 3000 for d in TRAIN_SETS)
    assert all(len(heldout.questions(d)) >= 500 for d in DATASETS)
    assert len({p.id for p in train.passages}) == len(train.passages)


# Questions


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_answers_follow_from_the_gold_passages(split, dataset):
    """A reader who sees only the gold passages can follow the program to the gold answer."""
    world = load_world(0, split)
    for question in world.questions(dataset):
        program, gold = question.program, {t: world.entities[t] for t in question.gold_titles}
        while program.pending is not None:
            program = advance(program, gold)[-1]
        assert program.current == question.answers[0]


@pytest.mark.parametrize("dataset", DATASETS)
def test_answers_do_not_show_early(heldout, dataset):
    text = {p.title: f"{p.title}: {p.text}" for p in heldout.passages}
    for question in heldout.questions(dataset):
        if question.kind == "comparison":
            assert question.answers[0] in question.question
            continue
        assert not any(a in question.question for a in question.answers)
        stating = [t for t in question.gold_titles if question.answers[0] in text[t]]
        assert len(stating) == 1
        if question.kind.startswith("bridge") and question.kind != "bridge_then_compare":
            assert stating == [question.gold_titles[-1]]


def test_training_holds_no_chain_of_three_or_more(train):
    assert train.questions("musique") == []
    for dataset in TRAIN_SETS:
        for question in train.questions(dataset):
            assert len(question.program.sides[0].relations) <= 2
            assert len(question.program.tail) <= 2
    assert {q.hops for q in train.questions("hotpot")} == {2}


def test_musique_has_three_and_four_hops(heldout):
    hops = [len(q.gold_titles) for q in heldout.questions("musique")]
    assert set(hops) == {3, 4} and 0.4 < hops.count(3) / len(hops) < 0.6


def test_guessing_does_not_pay(heldout):
    """The most frequent answer of a set is rare, and few questions are a choice of two."""
    for dataset in DATASETS:
        answers = [q.answers[0] for q in heldout.questions(dataset)]
        assert max(map(answers.count, set(answers))) / len(answers) < 0.05
    kinds = [q.kind for q in heldout.questions("wiki2")]
    assert kinds.count("comparison") / len(kinds) < 0.4


def test_some_answers_have_aliases(heldout):
    aliased = [q for d in DATASETS for q in heldout.questions(d) if len(q.answers) > 1]
    text = {p.title: p.text for p in heldout.passages}
    assert len(aliased) > 50
    assert all(q.answers[1] in text[q.answers[0]] for q in aliased)


# Programs


def test_a_chain_is_rewritten_from_the_front():
    entities = generate_entities(0, "heldout")
    film = next(e for e in entities.values() if e.kind == "film")
    states = advance(chain(film.name, "director", "spouse", "birthplace"), entities)
    assert [str(s) for s in states] == [f"{film.attributes['director']}'s spouse's birthplace"]


def test_a_comparison_collects_years_and_goes_on_from_the_winner():
    entities = generate_entities(0, "heldout")
    films = [e for e in entities.values() if e.kind == "film"]
    old = min(films, key=lambda e: e.attributes[TIME["film"]])
    new = max(films, key=lambda e: e.attributes[TIME["film"]])
    a, b = old.attributes["year"], new.attributes["year"]
    program = Program((Chain(new.name), Chain(old.name)), "earlier", ("director", "spouse"))
    (first,) = advance(program, entities)
    assert str(first) == f"earlier ( {b} {new.name} or {old.name})'s director's spouse"
    assert [str(s) for s in advance(first, entities)] == [
        f"earlier ( {b} {new.name} or {a} {old.name})'s director's spouse",
        f"{a} {old.name}'s director's spouse",
        f"{old.attributes['director']}'s spouse",
    ]


# Traces


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_oracle_answers_everything(heldout, dataset):
    for question in heldout.questions(dataset):
        messages = oracle(question, heldout)
        roles = [m["role"] for m in messages]
        assert roles == ["user"] + ["assistant", "tool"] * len(question.gold_titles) + ["assistant"]
        assert ANSWER.findall(messages[-1]["content"])[0].strip() in question.answers
        for title, response in zip(question.gold_titles, messages[2::2]):
            assert f"- {title}: " in response["content"]


def test_rewriting_drills_neither_ask_nor_answer(train):
    rng = random.Random(0)
    for _ in range(200):
        user, *turns = rewriting_drill(train, rng)
        assert "?" not in user["content"]
        assert all("<answer>" not in turn["content"] for turn in turns)
        states = [re.search("<think> (.*)</think>", turn["content"]).group(1) for turn in turns[::2]]
        assert 2 <= len(states) <= 4 and states[0] == user["content"]
        for before, left in zip(states, states[1:]):
            assert left.split("'s ")[1:] == before.split("'s ")[2:] != []


def test_the_impatient_agent_searches_first_and_often_stops_early(train):
    rng, right = random.Random(0), 0
    questions = train.questions("hotpot")[:400] + train.questions("wiki2")[:400]
    for question in questions:
        messages = episode(question, train, Patience(), rng)
        assert messages[2]["role"] == "tool"
        right += ANSWER.findall(messages[-1]["content"])[0].strip() in question.answers
    assert 0.2 < right / len(questions) < 0.5


# Tokenizer and shipped folders

MODELS = Path(__file__).parent.parent / "configs" / "models"


@pytest.fixture(scope="module", params=["tiny-agent", "tiny-rag"])
def tokenizer(request):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODELS / request.param)


def test_names_are_two_tokens_and_years_one(tokenizer, heldout):
    for name in heldout.names:
        assert len(tokenizer.encode(f" {name}", add_special_tokens=False)) == 2
    assert len(tokenizer.encode(" 1984", add_special_tokens=False)) == 1
    assert len(tokenizer) < 1100


@pytest.mark.parametrize(
    "text",
    [
        'héllo 世界 \'\' \n\n  x\'s don\'t "}} {"name": "a", 123 <think> foo</think>\n\n<tool_call>\n{}',
        "Are you OK?  \t\r\n- x",
        "🙂 <answer></answer><|im_end|>",
    ],
)
def test_any_text_comes_back_byte_by_byte(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("dataset", DATASETS)
def test_turn_by_turn_equals_whole_conversation(tokenizer, heldout, dataset):
    """Prompt, then each turn and each response tokenised alone, joined: the ids of the whole."""
    for question in heldout.questions(dataset)[:40]:
        messages = oracle(question, heldout)
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
        ids = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
        for i in range(1, len(messages), 2):
            ids += tokenizer.encode(messages[i]["content"] + "<|im_end|>", add_special_tokens=False)
            before = tokenizer.apply_chat_template(messages[: i + 1], tokenize=False)
            more = i + 1 < len(messages)
            after = tokenizer.apply_chat_template(messages[: i + 2], tokenize=False, add_generation_prompt=more)
            assert after.startswith(before)
            ids += tokenizer.encode("\n" + after[len(before) :], add_special_tokens=False)
        assert ids == whole
        assert len(whole) <= 450


def test_template_groups_tool_messages_and_takes_a_system_message(tokenizer):
    messages = [{"role": r, "content": c} for r, c in zip(("system", "user", "assistant", "tool", "tool"), "suabc")]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nb\n</tool_response>\n<tool_response>\nc\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_calls_are_json_in_hermes_form(heldout):
    content = oracle(heldout.questions("hotpot")[0], heldout)[1]["content"]
    body = re.fullmatch(r"<think> .*</think>\n<tool_call>\n(.*)\n</tool_call>", content).group(1)
    assert json.loads(body)["arguments"]["query"].strip() == heldout.questions("hotpot")[0].gold_titles[0]


def test_labels_are_the_assistants_tokens(tokenizer, heldout):
    from learner.warmstart import encode

    messages = oracle(heldout.questions("hotpot")[0], heldout)
    example = encode(messages, True, tokenizer)
    spoken = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
    assert tokenizer.decode([t for t in example.labels if t != -100]) == "".join(spoken)
    assert all(label in (-100, token) for label, token in zip(example.labels, example.ids[1:]))
    undecided = encode(messages, False, tokenizer)
    free = {t for t, u in zip(example.labels, undecided.labels) if t != u}
    assert tokenizer.convert_ids_to_tokens(sorted(free)) == ["<tool_call>", "<answer>"]


def test_rag_example_ends_with_the_gold_answer(train):
    question = train.questions("wiki2")[0]
    user, assistant = rag_example(question, train)
    assert user["content"].endswith(question.question) and user["content"].count("\n- ") == 4
    assert ANSWER.findall(assistant["content"])[0].strip() == question.answers[0]


@pytest.mark.parametrize("passages", [1, 2, 3])
def test_lookup_drills_teach_what_the_passages_say_and_nothing_random(tokenizer, train, passages):
    from envs.world.drills import lookup_drill
    from learner.warmstart import drill

    for seed in range(20):
        (shown, taught), *segments = lookup_drill(train, random.Random(seed), passages, programs=12)
        assert not taught and sum(not taught for _, taught in segments) == 12
        assert shown.count("\n- ") == passages
        for (before, _), (text, taught) in zip(segments, segments[1:]):
            if taught and "(" not in text and "(" not in before:
                assert text.removeprefix(";").split("'s ")[0].strip() in shown
    rng = random.Random(1)
    rng.choice((passages,))  # as the drill draws its number of passages
    segments = lookup_drill(train, rng, passages, programs=12)
    example = drill(train, random.Random(1), tokenizer, passages=(passages,))
    assert example.ids == tokenizer.encode("".join(text for text, _ in segments), add_special_tokens=False)
    spoken = tokenizer.decode([label for label in example.labels if label != -100])
    assert re.sub(r"\W", "", spoken) == re.sub(r"\W", "", "".join(text for text, taught in segments if taught))
