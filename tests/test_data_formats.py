"""The published formats as questions, problems, passages and conversations."""

import json

import pytest

from envs.data.calls import CallSource, load_conversations
from envs.data.corpus import context_corpus, read_corpus
from envs.data.problems import load_problems
from envs.data.questions import QuestionSource, load_questions
from envs.data.source import Source
from envs.scoring import number_match, parse_number

HOTPOT = {
    "_id": "5a", "type": "bridge", "level": "hard", "question": "On which river was Ada born?", "answer": "the Thames",
    "supporting_facts": [["Ada", 0], ["London", 0], ["London", 1]],
    "context": [["Ada", ["Ada was born in London.", " She wrote."]], ["London", ["It is on the Thames."]]],
}  # fmt: skip
#: The hub's columns of the same row.
HUB = {
    **{key: HOTPOT[key] for key in ("type", "level", "question", "answer")}, "id": "5a",
    "supporting_facts": {"title": ["Ada", "London", "London"], "sent_id": [0, 0, 1]},
    "context": {"title": ["Ada", "London"], "sentences": [c[1] for c in HOTPOT["context"]]},
}  # fmt: skip
MUSIQUE = {
    "id": "2hop__1_2", "question": "Where?", "answer": "Oslo", "answer_aliases": ["Christiania", "", "Oslo"],
    "answerable": True, "question_decomposition": [],
    "paragraphs": [{"idx": 0, "title": "A", "paragraph_text": "a", "is_supporting": True},
                   {"idx": 1, "title": "B", "paragraph_text": "b", "is_supporting": False},
                   {"idx": 2, "title": "A", "paragraph_text": "c", "is_supporting": True}],
}  # fmt: skip


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def questions(tmp_path, *rows, bad_rows="fatal", contexts=True, **more):
    source = QuestionSource(path=write(tmp_path / "q.jsonl", rows), **more)
    return load_questions(source, bad_rows, contexts)


# ── questions ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "row",
    [HOTPOT, HUB, {**HOTPOT, **{k: json.dumps(HOTPOT[k]) for k in ("context", "supporting_facts")}}],
    ids=["official", "hub", "strings"],
)
def test_hotpot_in_its_three_shapes_is_one_question(tmp_path, row):
    [question] = questions(tmp_path, row)
    assert (question.id, question.question) == ("5a", "On which river was Ada born?")
    assert question.answers == ("the Thames",) and question.titles == ("Ada", "London")
    assert question.context == (("Ada", "Ada was born in London. She wrote."), ("London", "It is on the Thames."))
    assert questions(tmp_path, row, contexts=False)[0].context == ()


def test_2wiki_takes_its_aliases_and_demonyms(tmp_path):
    aliases = write(tmp_path / "id_aliases.json", [{"Q_id": "Q1", "aliases": ["Thames"], "demonyms": ["Thamesian"]}])
    rows = [{**HOTPOT, "answer_id": "Q1"}, {**HOTPOT, "_id": "5b", "answer_id": "Q2"}]
    one, two = questions(tmp_path, *rows, aliases=aliases)
    assert one.answers == ("the Thames", "Thames", "Thamesian") and two.answers == ("the Thames",)
    load_questions.cache_clear()
    with pytest.raises(ValueError, match=r"q\.jsonl:1: aliases are given, but it has no answer_id"):
        questions(tmp_path, HOTPOT, aliases=aliases)
    write(tmp_path / "id_aliases.json", [{"id": 3}])
    with pytest.raises(ValueError, match=r"id_aliases\.json:1: a line of id_aliases\.json needs Q_id"):
        questions(tmp_path, HOTPOT, aliases=aliases)


def test_musique_keeps_aliases_and_supporting_titles(tmp_path):
    [question] = questions(tmp_path, MUSIQUE)
    assert question.answers == ("Oslo", "Christiania") and question.titles == ("A",)
    assert question.context == (("A", "a"), ("B", "b"), ("A", "c"))


@pytest.mark.parametrize(
    "row",
    [
        {"id": 7, "question": "q?", "answers": ["a", "b"], "titles": ["T"]},
        {"id": "7", "question": "q?", "golden_answers": ["a", "b"], "titles": ["T"]},
        {"id": "7", "Question": "q?", "answer": ["a", "b"], "titles": ["T"]},
    ],
)
def test_the_plain_form_and_its_other_names(tmp_path, row):
    [question] = questions(tmp_path, row)
    assert (question.id, question.question, question.answers, question.titles) == ("7", "q?", ("a", "b"), ("T",))
    [single] = questions(tmp_path, {"id": 1, "question": "How many?", "answer": 42}, contexts=False)
    assert single.answers == ("42",)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({k: v for k, v in HOTPOT.items() if k != "answer"}, "a question needs answer: Field required"),
        ({**HOTPOT, "supporting_facts": [["Ada"]]}, "a question needs supporting_facts.0.1: Field required"),
        ({**HOTPOT, "supporting_facts": {"title": ["Ada"], "sent_id": [0, 1]}}, "supporting_facts: zip"),
        ({**HOTPOT, "context": "[oops"}, "needs context: Expecting value"),
        ({**HOTPOT, "question": "  "}, "question: String should have at least 1 character"),
        ({**HOTPOT, "answer": "\ud800"}, "answer: Input should be a valid string"),
        ({**MUSIQUE, "answerable": False}, "not answerable from its paragraphs"),
        ({**MUSIQUE, "paragraphs": [{"title": "A"}]}, "paragraphs.0.paragraph_text: Field required"),
        ({"id": 1, "question": "q?"}, "a question needs answers: Field required"),
        ({"id": 1, "question": "q?", "answers": []}, "answers: List should have at least 1 item"),
        ({"question": "q?", "answer": "a"}, "a question needs id"),
    ],
)
def test_a_question_that_cannot_be_used_says_why(tmp_path, row, says):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"id": 0, "question": "q?", "answer": "a"}) + "\n" + json.dumps(row))
    with pytest.raises(ValueError, match=rf"q\.jsonl:2: .*{says}"):
        load_questions(QuestionSource(path=str(path)), "fatal")
    assert len(load_questions(QuestionSource(path=str(path)), "skip")) == 1


# ── passages ─────────────────────────────────────────────────────────────────


def test_both_forms_of_a_corpus(tmp_path):
    rows = [{"id": 1, "title": "T", "text": "x"}, {"id": "2", "contents": '"U V"\ny\nz'}]
    one, two = read_corpus(write(tmp_path / "c.jsonl", rows))
    assert (one.id, one.title, one.text) == ("1", "T", "x") and (two.id, two.title, two.text) == ("2", "U V", "y\nz")
    path = write(tmp_path / "d.jsonl", [{"id": 1, "title": "T", "text": "x"}, {"id": 1, "contents": 3}, {"id": 2}])
    with pytest.raises(ValueError, match=r"d\.jsonl:2: a passage needs contents"):
        read_corpus(path)
    assert len(read_corpus(path, "skip")) == 1


def test_the_corpus_of_the_contexts_has_each_paragraph_once(tmp_path):
    first = QuestionSource(path=write(tmp_path / "a.jsonl", [HOTPOT, {**HOTPOT, "_id": "5b"}]))
    second = QuestionSource(path=write(tmp_path / "b.jsonl", [MUSIQUE]))
    passages = context_corpus((first, second), "fatal")
    assert [p.title for p in passages] == ["Ada", "London", "A", "B", "A"]
    assert len({p.id for p in passages}) == 5
    plain = QuestionSource(path=write(tmp_path / "c.jsonl", [{"id": 1, "question": "q?", "answer": "a"}]))
    with pytest.raises(ValueError, match=r"env\.args\.corpus is not set, and no row of .*c\.jsonl has context"):
        context_corpus((plain,), "fatal")


# ── problems ─────────────────────────────────────────────────────────────────


def test_gsm8k_answers_are_what_follows_the_mark(tmp_path):
    rows = [
        {"question": "q?", "answer": "2+2=<<2+2=4>>4\n#### 4"},
        {"question": "q?", "answer": "#### 1,234"},
        {"question": "q?", "answer": 9},
    ]
    problems = load_problems(Source(path=write(tmp_path / "p.jsonl", rows)), "fatal")
    assert [(p.id, p.answer) for p in problems] == [("1", "4"), ("2", "1,234"), ("3", "9")]
    path = write(tmp_path / "bad.jsonl", [{"question": "q?", "answer": "#### 4 or 5"}])
    with pytest.raises(ValueError, match=r"bad\.jsonl:1: a problem needs an answer that is one number"):
        load_problems(Source(path=path), "fatal")


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("18", "18", 1), ("18.00", "18", 1), ("$18", "18", 1), ("18 eggs.", "18", 1), ("1,234", "1234", 1),
        ("1234", "1,234", 1), ("-3", "-3", 1), ("−3", "-3", 1), ("-$3", "-3", 1), (".5", "0.5", 1), ("x = 7", "7", 1),
        ("19", "18", 0), ("18 or 19", "18", 0), ("36/2", "18", 0), ("1,23", "123", 0), ("12,345,6", "123456", 0),
        ("eighteen", "18", 0), ("", "18", 0), ("3", "-3", 0), ("1e3", "1000", 0), ("٣", "3", 0),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_numbers(answer, gold, right):
    assert number_match(answer, gold) == right


def test_a_gold_that_is_no_number_matches_nothing():
    assert parse_number("none") is None and number_match("none", "none") == 0.0


# ── conversations ────────────────────────────────────────────────────────────

WEATHER = {
    "name": "weather", "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]},
}  # fmt: skip
ROW = {
    "id": "w1", "messages": [{"role": "user", "content": "Weather in Oslo?"}],
    "tools": [{"type": "function", "function": WEATHER}],
    "expected_calls": [{"name": "weather", "possible_args": {"city": ["Oslo"], "days": [1, ""]}}],
}  # fmt: skip


def conversations(tmp_path, *rows, bad_rows="fatal", **more):
    return load_conversations(CallSource(path=write(tmp_path / "calls.jsonl", rows), **more), bad_rows)


def test_openai_rows_also_with_strings_and_exact_arguments(tmp_path):
    exact = {**ROW, "id": "w2", "expected_calls": [{"name": "weather", "arguments": '{"city": "Oslo"}'}]}
    strings = {**ROW, "id": "w3", **{k: json.dumps(ROW[k]) for k in ("messages", "tools", "expected_calls")}}
    none = {**ROW, "expected_calls": []}
    del none["id"]
    one, two, three, four = conversations(tmp_path, ROW, exact, strings, none)
    assert (one.id, one.messages, one.tools, one.expected) == tuple(
        ROW[k] for k in ("id", "messages", "tools", "expected_calls")
    )
    assert two.expected == [{"name": "weather", "possible_args": {"city": ["Oslo"]}}]
    assert (three.messages, three.tools, three.expected) == (one.messages, one.tools, one.expected)
    assert four.id == "4" and four.expected == []


def test_exact_arguments_are_exact_inside_objects_too(tmp_path):
    tool = {"function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"name": "f", "arguments": {"where": {"x": [1, {"y": 2}]}}}
    [row] = conversations(tmp_path, {**ROW, "tools": [tool], "expected_calls": [call]})
    assert row.expected[0]["possible_args"] == {"where": [{"x": [[1, {"y": [2]}]]}]}
    assert row.tools == [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    ]


BFCL = {
    "id": "parallel_0", "question": [[{"role": "user", "content": "Areas, please."}]],
    "function": [{"name": "math.area", "description": "Area.", "parameters": {"type": "dict", "required": ["r"], "properties": {
        "r": {"type": "float"}, "points": {"type": "tuple", "items": {"type": "any"}}, "type": {"type": "string"}}}}],
}  # fmt: skip


def test_the_leaderboards_own_files(tmp_path):
    truth = [{"math.area": {"r": [2.0], "type": ["disc", ""]}}]
    answers = write(tmp_path / "answers.json", [{"id": "parallel_0", "ground_truth": truth}])
    [row] = conversations(tmp_path, BFCL, answers=answers)
    assert row.messages == BFCL["question"][0]
    assert row.expected == [{"name": "math_area", "possible_args": {"r": [2.0], "type": ["disc", ""]}}]
    function = row.tools[0]["function"]
    assert function["name"] == "math_area" and function["parameters"] == {
        "type": "object",
        "required": ["r"],
        "properties": {
            "r": {"type": "number"}, "points": {"type": "array", "items": {}}, "type": {"type": "string"},
        },
    }  # fmt: skip
    assert conversations(tmp_path, {**BFCL, "ground_truth": truth})[0] == row


def changed(**fields):
    return {**ROW, **fields}


def tool(**fields):
    return [{"function": {**WEATHER, **fields}}]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (changed(messages=[]), "messages: List should have at least 1 item"),
        (changed(messages=[{"role": "robot", "content": "x"}]), "messages.0.role"),
        (changed(messages=[{"role": "user", "content": None}]), "messages.0.content"),
        (changed(tools="[oops"), "tools: Expecting value"),
        (changed(tools="[" * 100_000), "nested too deeply"),
        (changed(tools=ROW["tools"] * 2), "two of its tools have one name"),
        (changed(tools=tool(name="w" * 65)), "at most 64 characters"),
        (changed(tools=tool(parameters={"type": "dict"})), "parameters of weather: not a JSON schema"),
        (changed(tools=tool(parameters={"$ref": "http://127.0.0.1:9/x"})), "parameters of weather: .*127.0.0.1:9"),
        (changed(expected_calls=[{"name": "rain", "arguments": {}}]), "expects a call of rain, which is not"),
        (changed(expected_calls=[{"name": "weather", "arguments": {"city": 3}}]), "does not fit its schema"),
        (changed(expected_calls=[{"name": "weather", "arguments": {}}]), "'city' is a required property"),
        (changed(expected_calls=[{"name": "weather", "possible_args": {"city": []}}]), "at least 1 item"),
        (changed(expected_calls=[{"name": "weather"}]), "expected_calls.0.possible_args: Field required"),
        (BFCL, "no 'parallel_0' here or in the file of answers"),
        ({**BFCL, "ground_truth": [], "question": [[], []]}, "it has 2 turns"),
        ({**BFCL, "ground_truth": "x"}, "not in BFCL's form"),
    ],
)
def test_a_conversation_that_cannot_be_used_says_why(tmp_path, row, says):
    good = {**ROW, "id": "good"}
    with pytest.raises(ValueError, match=rf"calls\.jsonl:2: .*{says}"):
        conversations(tmp_path, good, row)
    assert [c.id for c in conversations(tmp_path, good, row, bad_rows="skip")] == ["good"]
