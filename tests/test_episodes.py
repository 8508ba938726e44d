"""episodes.jsonl and environment.json: what the run folder keeps for those who read a run afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from configs.schema import Config
from learner.run.environment import environment
from learner.run.episodes import episode_record, group_records
from learner.run.folder import RunFolder
from learner.run.parts import parts
from tests.synthetic_run import decode, synthetic_group


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(Config(run={"dir": tmp_path / "run"}, log={"trackers": []})) as folder:
        yield folder


def test_nothing_is_lost_on_the_way_to_the_file(folder):
    group, advantages = synthetic_group(4)
    folder.log_episodes(group_records(group, advantages, 4, decode))
    found = folder.read_episodes()
    assert [e["group"] for e in found] == ["lease-4"] * 4 and {e["kind"] for e in found} == {"train"}
    for record, trajectory, advantage in zip(found, group.trajectories, advantages, strict=True):
        sampled = trajectory.action_mask.astype(bool)
        spans = [(s["start"], s["stop"]) for s in record["segments"] if s["role"] == "policy"]
        assert np.array_equal(np.concatenate([np.arange(*span) for span in spans]), np.flatnonzero(sampled))
        assert "".join(s["text"] for s in record["segments"]) == decode(record["token_ids"])
        assert record["token_ids"] == trajectory.token_ids.tolist()
        assert np.allclose(record["logprobs"], trajectory.behaviour_logprobs[sampled], atol=1e-5)
        assert np.allclose(record["advantages"], advantage[sampled], atol=1e-5)
        assert record["token_versions"] == trajectory.versions[sampled].tolist() and record["versions"] == [2, 3]
        assert record["reward"] == pytest.approx(trajectory.total_reward, abs=1e-5)
    assert found[0]["reward"] == 1.1 and found[2]["reward"] == 0.1


def test_an_evaluation_has_no_advantages():
    record = episode_record(synthetic_group(1)[0].trajectories[0], 1, "eval", "task", decode)
    assert "advantages" not in record and record["kind"] == "eval"


def test_a_kill_spoils_nothing_and_a_resumed_learner_writes_again(folder):
    for step in (1, 2, 3):
        folder.log({"step": step})
        folder.log_episodes([{"step": step, "text": "x" * 100_000}])
    path = folder.path / "episodes.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "text": "' + "y" * 200_000)
    assert [e["step"] for e in folder.read_episodes()] == [1, 2, 3]
    folder.log_episodes([{"step": 4}])
    assert [e["step"] for e in folder.read_episodes()] == [1, 2, 3, 4]
    folder.truncate_metrics(2)
    assert [e["step"] for e in folder.read_episodes()] == [1, 2]


def test_a_file_that_is_one_torn_line_starts_anew(folder):
    (folder.path / "episodes.jsonl").write_text("z" * 100_000)
    folder.log_episodes([{"step": 1}])
    assert folder.read_episodes() == [{"step": 1}]


def test_environment_names_machine_and_packages(folder, monkeypatch):
    assert (folder.path / "environment.json").is_file()
    found = environment()
    assert found["packages"]["numpy"] == np.__version__ and found["cores"] >= 1 and found["memory_gib"] > 0
    monkeypatch.setenv("PATH", "/nonexistent")  # no git: the run starts all the same
    assert environment()["revision"] is None


@pytest.mark.parametrize(
    ("role", "text", "found"),
    [
        ("prompt", "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n", [("question", "Who?")]),
        ("prompt", "Plain words", [("question", "Plain words")]),
        ("environment", "<|im_end|>\n<|im_start|>user\n<tool_response>\nyes\n</tool_response>", [("response", "yes")]),
        ("policy", "<think>a</think> b <answer>c</answer><|im_end|>", [("thought", "a"), ("text", "b"), ("answer", "c")]),
        ("policy", '<tool_call>{"name": "s", "arguments": {"q": "é", "n": 1}}</tool_call>', [("call", 's(q="é", n=1)')]),
        ("policy", '<tool_call>{"name": broken', [("call", '{"name": broken')]),
        ("policy", '<tool_call>["a"]</tool_call>', [("call", '["a"]')]),
        ("policy", "<|im_end|>", []),
    ],
)  # fmt: skip
def test_parts_of_what_was_written(role, text, found):
    assert parts({"role": role, "text": text}) == found
