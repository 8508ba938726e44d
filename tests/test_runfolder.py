"""What a run leaves behind: the folder, the summary, the readable episodes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from configs.schema import Config
from learner.run.folder import RunFolder, RunFolderError
from learner.run.scalars import tags
from learner.run.summary import Summary, summary_table
from learner.run.transcript import fence, render, segments, view
from protocol.trajectory import NO_VERSION, Trajectory
from tests.synthetic_snapshot import synthetic_evals, synthetic_record

ROOT = Path(__file__).parents[1]


def config(path, resume=False, trackers=("tensorboard",)) -> Config:
    return Config(run={"dir": path, "resume": resume}, log={"trackers": list(trackers)})


# ── the folder ───────────────────────────────────────────────────────────────


def test_a_run_from_start_to_end(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        folder.log({"step": 1, "loss": np.float32(0.5), "bad": float("nan"), "path": Path("x"), "em": {"a": 1}})
        folder.log({"step": 1, "eval": {"version": 1, "dataset": "a", "em": 0.5}})
        written = folder.write_trajectories(10, ["## one\n", "## two\n"])
        folder.log_path("actor-0").write_text("hello")
        assert folder.summary() is None
        folder.write_summary({"steps": 1, "staleness": {"max": np.int64(2)}})
    assert folder.read_metrics() == [
        {"step": 1, "loss": 0.5, "bad": None, "path": "x", "em": {"a": 1}},
        {"step": 1, "eval": {"version": 1, "dataset": "a", "em": 0.5}},
    ]
    assert written.name == "step-000010.md" and "## two" in written.read_text()
    assert folder.summary() == {"steps": 1, "staleness": {"max": 2}}
    assert Config(**yaml.safe_load((folder.path / "config.yaml").read_text())).run.dir == tmp_path / "run"


def test_metrics_are_there_as_soon_as_they_are_logged(tmp_path):
    folder = RunFolder.open(config(tmp_path / "run", trackers=()))
    folder.log({"step": 1})
    assert (folder.path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert not (folder.path / "tensorboard").exists()
    folder.close()


def test_a_torn_last_line_is_forgiven_and_mended(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        folder.log({"step": 1})
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')
    with RunFolder.open(config(tmp_path / "run", resume=True)) as folder:
        assert folder.read_metrics() == [{"step": 1}]
        folder.log({"step": 2})
        assert folder.read_metrics() == [{"step": 1}, {"step": 2}]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        (folder.path / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl:2 is not JSON"):
            folder.read_metrics()


def test_truncate_forgets_what_comes_after_the_checkpoint(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        for step in range(1, 6):
            folder.log({"step": step})
        folder.truncate_metrics(3)
        folder.log({"step": 4, "again": 1})
    assert folder.read_metrics() == [{"step": 1}, {"step": 2}, {"step": 3}, {"step": 4, "again": 1}]


@pytest.mark.parametrize("finished", [True, False])
def test_an_earlier_run_is_not_overwritten(tmp_path, finished):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        folder.log({"step": 1})
        if finished:
            folder.write_summary({})
    word = "a finished" if finished else "an unfinished"
    with pytest.raises(RunFolderError, match=f"holds {word} run: .*run.resume=true"):
        RunFolder.open(config(tmp_path / "run"))
    assert folder.read_metrics() == [{"step": 1}]


def test_an_earlier_run_is_moved_aside_and_the_person_is_told(tmp_path):
    for number in range(3):
        with RunFolder.open(config(tmp_path / "run"), move_aside=True) as folder:
            folder.log({"step": number})
    assert folder.read_metrics() == [{"step": 2}]
    assert [RunFolder(tmp_path / f"run-{n}").read_metrics() for n in (1, 2)] == [[{"step": 0}], [{"step": 1}]]
    assert f"the earlier run in {tmp_path / 'run'} is now in {tmp_path / 'run-2'}" in folder.notes[0]


def test_a_start_that_came_to_nothing_leaves_nothing_to_move(tmp_path):
    for _ in range(2):
        with RunFolder.open(config(tmp_path / "run"), move_aside=True) as folder:
            folder.log_path("learner").write_text("port in use")
    assert folder.notes == [] and not (tmp_path / "run-1").exists()


def test_resume_goes_on_in_place_and_keeps_both_configurations(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        folder.log({"step": 1})
        folder.write_summary({})
    again = config(tmp_path / "run", resume=True)
    with RunFolder.open(again) as folder:
        assert folder.read_metrics() == [{"step": 1}]
        assert folder.summary() is None  # the run is not over any more
    assert yaml.safe_load((folder.path / "config-1.yaml").read_text())["run"]["resume"] is False
    assert "goes on from version 0" in folder.notes[0] and "config-1.yaml" in folder.notes[1]


def test_what_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for aside in (True, False):
        with pytest.raises(RunFolderError, match="holds files that are not a run's"):
            RunFolder.open(config(tmp_path), move_aside=aside)
    with pytest.raises(RunFolderError, match="is not a folder"):
        RunFolder.open(config(tmp_path / "thesis.tex"))
    with pytest.raises(RunFolderError, match="no run to resume"):
        RunFolder.open(config(tmp_path / "none", resume=True))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


OPEN = """
import sys
from configs.schema import Config
from learner.run.folder import RunFolder, RunFolderError
try:
    folder = RunFolder.open(Config(run={"dir": sys.argv[1]}))
    folder.log({"step": 2})
    print("attached")
except RunFolderError as error:
    print(error)
"""


def test_a_child_of_the_holder_shares_the_folder(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        folder.log({"step": 1})
        command = [sys.executable, "-c", OPEN, str(folder.path)]
        child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert child.stdout.strip() == "attached", child.stderr
    assert folder.read_metrics() == [{"step": 1}, {"step": 2}]


def test_a_running_run_is_not_moved_aside(tmp_path):
    code = OPEN.replace('print("attached")', 'print("attached", flush=True); sys.stdin.read()')
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout.readline().strip() == "attached"
        with pytest.raises(RunFolderError, match=f"in use by process {other.pid}"):
            RunFolder.open(config(tmp_path / "run"), move_aside=True)
        other.kill()  # the lock goes with its holder
    with RunFolder.open(config(tmp_path / "run"), move_aside=True) as folder:
        assert folder.notes


def scalars(folder) -> dict[tuple[str, int], float]:
    """(tag, step) → value as TensorBoard reads them, purging what a restart took back."""
    found: dict[tuple[str, int], float] = {}
    for path in sorted((folder.path / "tensorboard").iterdir(), key=lambda p: p.stat().st_mtime_ns):
        for event in EventFileLoader(str(path)).Load():
            if event.HasField("session_log"):
                found = {key: value for key, value in found.items() if key[1] < event.step}
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                found[value.tag, event.step] = round(number, 6)
    return found


def test_tensorboard_reads_what_was_logged(tmp_path):
    with RunFolder.open(config(tmp_path / "run")) as folder:
        folder.log({"step": 1, "reward": 0.25, "em": {"hotpot": 0.5}})
        folder.log({"step": 2, "reward": 0.5})
        folder.log({"step": 2, "eval": {"version": 2, "dataset": "hotpot", "em": 0.75}})
        folder.truncate_metrics(1)
        folder.log({"step": 2, "reward": 0.75})
    assert scalars(folder) == {
        ("train/step", 1): 1, ("train/reward", 1): 0.25, ("train/em/hotpot", 1): 0.5,
        ("train/step", 2): 2, ("train/reward", 2): 0.75,
    }  # fmt: skip


def test_tags_of_an_evaluation():
    scores = {"version": 0, "dataset": "hotpot", "baseline": "Naive RAG", "em": 0.25, "n": 100}
    assert tags({"step": 0, "eval": scores}) == [("eval/Naive RAG/hotpot/em", 0.25), ("eval/Naive RAG/hotpot/n", 100.0)]


# ── the summary ──────────────────────────────────────────────────────────────


class Report:
    def __init__(self, seconds, servers=1):
        self._record = {"seconds": seconds, "servers": servers}

    def as_record(self):
        return self._record


def step(**values):
    return {
        "episodes": 8,
        "tokens": 100,
        "action_tokens": 10,
        "seconds": {"update": 2.0},
        "em": {"hotpot": 0.5},
    } | values


def test_summary_weighs_by_tokens():
    summary = Summary()
    summary.add_step(step(staleness_mean=1.0, staleness_max=2))
    summary.add_mismatch([1e-6, 3e-6])
    summary.add_step(step(action_tokens=30, staleness_mean=0.0, staleness_max=1))
    summary.add_push(Report(0.5))
    summary.add_push(Report(1.5))
    summary.add_push(Report(9.0, servers=0))  # reached nobody
    out = summary.as_dict({"consumed": 2, "duplicates": 0, "lost": 0, "stale_dropped": 1})
    assert (out["steps"], out["episodes"], out["tokens_trained"], out["action_tokens_trained"]) == (2, 16, 200, 40)
    assert out["staleness"] == {"mean": 0.25, "max": 2}
    assert out["logprob_mismatch"] == {"mean": pytest.approx(2e-6), "max": 3e-6}
    assert out["weight_sync"] == {"count": 2, "mean_s": 1.0, "max_s": 1.5}
    assert out["ledger"]["stale_dropped"] == 1 and out["wall_s"] >= 0
    json.dumps(out, allow_nan=False)


def test_summary_of_nothing_has_no_figures():
    out = Summary().as_dict({})
    assert out["learner_busy_fraction"] is None and out["staleness"] == {"mean": None, "max": None}
    assert out["weight_sync"] == {"count": 0, "mean_s": None, "max_s": None}
    Console(file=io.StringIO()).print(summary_table(out))


def test_a_resumed_summary_counts_both_parts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("learner.run.summary.time.monotonic", lambda: now[0])
    first = Summary()
    first.training_started()
    first.add_step(step(staleness_mean=1.0))
    first.evals += synthetic_evals(0)
    now[0] += 10
    state = json.loads(json.dumps(first.state()))
    now[0] += 1000  # between the parts
    second = Summary.restore(state)
    second.training_started()
    second.add_step(step(staleness_mean=0.0))
    now[0] += 10
    second.training_ended()
    out = second.as_dict({})
    assert out["steps"] == 2 and out["wall_s"] == 20 and out["staleness"]["mean"] == 0.5
    assert out["learner_busy_fraction"] == pytest.approx(4 / 20) and len(out["eval"]) == len(first.evals)


def test_closing_table():
    summary = Summary()
    summary.training_started()
    for number in range(1, 61):
        summary.add_step(synthetic_record(number))
        summary.add_push(Report(0.3))
    rows = synthetic_evals(60)
    summary.evals = [row for row in rows if "baseline" not in row]
    summary.baselines = [row for row in rows if "baseline" in row]
    summary.training_ended()
    out = summary.as_dict({"consumed": 1920, "duplicates": 0, "lost": 0, "stale_dropped": 3})
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(out))
    lines = console.file.getvalue().splitlines()
    hotpot = next(line for line in lines if line.startswith("hotpot"))
    assert hotpot.split()[1:6] == ["0.290", "0.813", "+0.523", "0.270", "3.0×"]
    assert any(line.startswith("musique *") for line in lines)
    mean = next(line for line in lines if line.startswith("mean, trained"))
    assert mean.split()[2:7] == ["0.260", "0.788", "+0.528", "0.245", "3.2×"] and mean.split()[-1] == "600"
    assert max(map(len, lines)) <= 100 and "1,920 groups trained on · 0 lost · 0 twice" in "\n".join(lines)


# ── the transcript ───────────────────────────────────────────────────────────


def decode(ids):
    return "".join(chr(i) for i in ids)


def episode() -> Trajectory:
    """Prompt "Q?", turn "call" (versions 3, 3, 3, 4), response "[r]", turn "done"; "." is the environment's."""
    text, mask = "Q?call[r]done.", [0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
    versions = np.array([3, 3, 3, 4, 4, 4, 4, 4])
    action = np.array(mask, bool)
    full, rewards = np.full(len(text), NO_VERSION), np.zeros(len(text))
    full[action] = versions
    rewards[5], rewards[12] = 0.1, 1.0
    trajectory = Trajectory(
        token_ids=np.array([ord(c) for c in text], "<i4"),
        action_mask=np.array(mask, "u1"),
        behaviour_logprobs=np.zeros(len(text), "<f4"),
        versions=full.astype("<i4"),
        rewards=rewards.astype("<f4"),
        turns=np.array([[2, 6], [9, 13]], "<i4"),
        facts={
            "task_id": "t-1",
            "dataset": "hotpot",
            "finish": "done",
            "outcome_reward": 1.0,
            "metrics": {"em": 1.0},
            "tool_calls": [{"turn": 0, "name": "search", "latency_s": 0.012, "fault": "timeout"}],
        },
    )
    trajectory.validate()
    return trajectory


def test_segments_cover_the_episode_in_order():
    parts = segments(episode(), decode)
    assert [(p.role, p.text) for p in parts] == [
        ("prompt", "Q?"), ("policy", "call"), ("environment", "[r]"), ("policy", "done"), ("environment", ".")
    ]  # fmt: skip
    assert parts[1].versions == (3, 4) and parts[3].versions == (4, 4) and parts[0].versions is None
    assert parts[1].reward == pytest.approx(0.1) and parts[3].reward == 1.0 and parts[2].reward is None


def test_turns_without_anything_between_stay_apart():
    trajectory = episode()
    trajectory.turns = np.array([[2, 4], [4, 6], [9, 13]], "<i4")
    assert [p.text for p in segments(trajectory, decode) if p.role == "policy"] == ["ca", "ll", "done"]


def test_an_episode_without_tokens():
    empty = {
        name: getattr(episode(), name)[:0]
        for name in ("token_ids", "action_mask", "behaviour_logprobs", "versions", "rewards")
    }
    trajectory = Trajectory(**empty, turns=np.zeros((0, 2), "<i4"), facts={"finish": "failed"})
    assert segments(trajectory, decode) == [] and "failed" in render(trajectory, decode)


def test_view_is_plain_values():
    shown = view(episode(), decode)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["segments"][1] == {"role": "policy", "text": "call", "version": [3, 4], "reward": pytest.approx(0.1)}
    assert shown["segments"][3]["version"] == 4 and shown["reward"] == pytest.approx(1.1)


def test_rendering_says_who_wrote_what_and_what_it_earned():
    text = render(episode(), decode)
    assert text.startswith("## hotpot t-1\n")
    for fact in (
        "Reward 1.10 · answered · outcome +1.00 · em 1.00",
        "2 turns · 14 tokens, 8 sampled · versions 3 to 4",
        "**turn 1 · versions 3 to 4 · 4 tokens · reward +0.10**",
        "- called search, 12 ms, fault: timeout",
        "**turn 2 · version 4 · 4 tokens · reward +1.00**",
    ):
        assert fact in text, fact


def test_text_cannot_leave_its_code_block():
    assert fence("a\n```\n````b\x1b[2J") == "`````text\na\n```\n````b\\x1b[2J\n`````"
