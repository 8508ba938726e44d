"""One's own corpus and questions: both file forms, the reward path, and mistakes named by file and line."""

import json

import pytest

from envs.corpus_qa import read_corpus
from envs.registry import load_env

PASSAGES = [
    {"id": 1, "title": "Ada Byron", "text": "Ada Byron was born in London."},
    {"id": 2, "title": "London", "text": "London lies on the Thames."},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def args(tmp_path):
    hotpot = [{"_id": "a", "question": "On which river was Ada born?", "answer": "the Thames",
               "supporting_facts": [["Ada Byron", 0], ["London", 0], ["London", 1]]}]  # fmt: skip
    (tmp_path / "hotpot.json").write_text(json.dumps(hotpot))
    plain = [{"id": 7, "question": "Where was Ada born?", "answers": ["London", "London, England"]}]
    return {
        "corpus": write(tmp_path / "corpus.jsonl", PASSAGES),
        "files": {"train": {"mine": write(tmp_path / "plain.jsonl", plain)},
                  "eval": {"hotpot": str(tmp_path / "hotpot.json")}},
    }  # fmt: skip


def test_both_file_forms_become_tasks(args):
    env = load_env("envs.corpus_qa:CorpusQA", args)
    [task] = env.tasks("eval", "hotpot")
    assert (task["id"], task["answers"], task["gold_titles"]) == ("a", ["the Thames"], ["Ada Byron", "London"])
    [task] = env.tasks("train", "mine")
    assert (task["id"], task["answers"], task["gold_titles"]) == ("7", ["London", "London, England"], [])


async def test_an_agent_that_searches_and_answers_is_rewarded(args):
    env_class = load_env("envs.corpus_qa:CorpusQA", args | {"top_k": 1})
    [task] = env_class.tasks("eval", "hotpot")
    env = env_class()
    await env.reset(task, seed=0)
    found = await env.step('<tool_call>{"name": "search", "arguments": {"query": "Ada Byron"}}</tool_call>', "stop")
    assert found.reward == pytest.approx(0.05) and "born in London" in found.messages[0]["content"]
    end = await env.step("<answer>Thames</answer>", "stop")
    assert end.done and end.info["outcome_reward"] == 1.0 and end.info["metrics"]["found"] == 0.5


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{oops", r"corpus\.jsonl:3: not valid JSON"),
        ('{"id": 3}', r"corpus\.jsonl:3: a passage needs"),
        ("[1]", ":3: want an object"),
    ],
)
def test_a_bad_corpus_line_is_named(tmp_path, line, says):
    path = write(tmp_path / "corpus.jsonl", PASSAGES)
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=says):
        read_corpus(path)


def test_missing_files_and_sets_are_named(args, tmp_path):
    with pytest.raises(ValueError, match=r"no such file nowhere\.jsonl"):
        load_env("envs.corpus_qa:CorpusQA", args | {"corpus": "nowhere.jsonl"})
    with pytest.raises(ValueError, match="no train file for the data set 'other'"):
        load_env("envs.corpus_qa:CorpusQA", args).tasks("train", "other")
    bad = write(tmp_path / "bad.jsonl", [{"id": 1, "question": "Where?"}])
    with pytest.raises(ValueError, match=r"bad\.jsonl:1: a question needs"):
        load_env("envs.corpus_qa:CorpusQA", args | {"files": {"train": {"bad": bad}}}).tasks("train", "bad")
