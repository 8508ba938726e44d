"""A run watched again: what is recorded, that it equals what was shown, and the keys that move through it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from configs.schema import Config
from learner.dashboard import App
from learner.dashboard.app import PAGES
from learner.dashboard.recording import LONGEST_GAP_S, Recording
from learner.dashboard.replay import SPEEDS, Player, main
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from learner.run.folder import RunFolder, RunFolderError
from learner.run.snapshots import FILE, Recorder, SnapshotLog, read_snapshots
from protocol.messages import Task
from tests.synthetic_run import synthetic_run
from tests.synthetic_snapshot import synthetic_snapshot
from tests.terminal import ROOT, Terminal


def pages(snapshot, width=120, height=36):
    """Every page as text."""
    app = App()
    app.observe(snapshot)
    out = []
    for page in PAGES:
        app.page = page
        out.append([line.plain for line in app.lines(width, height)])
    return out


@pytest.fixture
def watched(tmp_path):
    """A folder of 12 steps, and the snapshots that were shown while it grew: one every half step."""
    shown = []
    with RunFolder.open(Config.model_validate({"run": {"dir": tmp_path / "run"}})) as folder:
        recorded = SnapshotLog(folder.path / FILE)
        for step in range(1, 13):
            folder.log(synthetic_snapshot(step)["history"][-1])
            for half in (0, 1):
                snapshot = synthetic_snapshot(step)
                snapshot["run"]["now"] += 2.5 * half
                snapshot["actors"][0]["stats"]["in_flight"] = step + half
                shown.append(snapshot)
                recorded.add(snapshot)
    return folder.path, shown


def test_replay_equals_live(watched):
    path, shown = watched
    recording = Recording.read(path)
    assert len(recording.frames) == len(shown) == 24
    for index, snapshot in enumerate(shown):
        assert pages(recording.snapshot(index)) == pages(snapshot), index


def test_what_a_gateway_shows_is_what_its_recorder_keeps(tmp_path):
    """The real gateway, a real folder and the recorder's own thread."""
    config = Config.model_validate({"run": {"dir": tmp_path / "run"}, "gateway": {"port": 5999}})
    tasks = [Task(task_id=f"task-{i}", dataset="hotpot", payload={}) for i in range(4)]
    with RunFolder.open(config) as folder:
        gateway = Gateway(config, Ledger(folder.path / "ledger.sqlite", tasks, 0), "run", {})
        example = synthetic_snapshot(3)
        gateway.publish(
            "run", {"id": "run", "steps": 60, "step": 3, "version": 3, "phase": "update", "phase_since": 0.0}
        )
        gateway.publish("evals", example["evals"])
        gateway.publish("servers", example["servers"])
        recorder = Recorder(gateway.snapshot, folder.path / FILE, every_s=0.05)
        recorder.start()
        for record in example["history"]:
            folder.log(record)
            gateway.append_history(record)
        gateway.publish("latest", example["latest"])
        time.sleep(0.2)
        gateway.publish("run", {"phase": "done"})
        live = gateway.snapshot()
        recorder.stop()
        gateway.stop("over")
    recording = Recording.read(folder.path)
    again = recording.snapshot(len(recording.frames) - 1)
    assert len(recording.frames) >= 3 and abs(again["run"]["now"] - live["run"]["now"]) < 2
    again["run"]["now"] = live["run"]["now"]
    assert again == live and pages(again) == pages(live)


def test_a_picture_takes_only_what_changed_and_a_torn_line_spoils_nothing(tmp_path):
    log = SnapshotLog(tmp_path / FILE)
    log.add(synthetic_snapshot(3))
    first = (tmp_path / FILE).stat().st_size
    second = synthetic_snapshot(3)
    second["run"]["now"] += 5
    log.add(second)
    lines = (tmp_path / FILE).read_text().splitlines()
    assert json.loads(lines[1]).keys() == {"run"} and len(lines[1]) < 0.1 * first
    with (tmp_path / FILE).open("a") as file:
        file.write('{"run": {"st')  # kill -9
    again = SnapshotLog(tmp_path / FILE)
    again.add(synthetic_snapshot(4))
    frames = list(read_snapshots(tmp_path / FILE))
    assert [frame["last_step"] for frame in frames] == [3, 3, 4]
    assert [frame["run"]["now"] for frame in frames[:2]] == [second["run"]["now"] - 5, second["run"]["now"]]
    assert frames[2]["actors"] == synthetic_snapshot(4)["actors"]


def test_the_file_is_bounded_by_thinning(tmp_path):
    log = SnapshotLog(tmp_path / FILE, limit_bytes=60_000)
    thinned = 0
    for step in range(1, 200):
        thinned += log.add(synthetic_snapshot(step, steps=200))
        assert (tmp_path / FILE).stat().st_size < 70_000
    steps = [frame["last_step"] for frame in read_snapshots(tmp_path / FILE)]
    assert thinned > 2 and steps[0] == 1 and steps == sorted(set(steps)) and steps[-1] > 190
    assert all(frame["latest"]["step"] == frame["last_step"] for frame in read_snapshots(tmp_path / FILE))


def test_a_full_disk_costs_the_pictures_and_not_the_run(tmp_path, caplog):
    recorder = Recorder(lambda since: synthetic_snapshot(2), tmp_path / "missing" / FILE, every_s=0.01)
    recorder.start()
    time.sleep(0.1)
    recorder.stop()
    assert caplog.text.count("training goes on") == 1


def test_steps_that_were_taken_back_are_not_shown(tmp_path):
    synthetic_run(tmp_path / "run", steps=6)
    for steps in ((1, 2, 3, 4, 5), (3, 4)):  # killed after 5, gone on with from 2
        log = SnapshotLog(tmp_path / "run" / FILE)
        for step in steps:
            log.add(synthetic_snapshot(step))
    recording = Recording.read(tmp_path / "run")
    assert [frame["run"]["step"] for frame in recording.frames] == [1, 2, 3, 3, 4]
    assert [r["step"] for r in recording.snapshot(4)["history"]] == [1, 2, 3, 4]


def test_a_night_between_two_parts_is_not_waited_for(tmp_path):
    synthetic_run(tmp_path / "run", steps=3)
    log = SnapshotLog(tmp_path / "run" / FILE)
    for now in (0.0, 5.0, 40_000.0):
        snapshot = synthetic_snapshot(3)
        snapshot["run"]["now"] = now
        log.add(snapshot)
    assert Recording.read(tmp_path / "run").times == [0.0, 5.0, 5.0 + LONGEST_GAP_S]


def test_a_run_without_pictures_is_rebuilt_from_its_records(tmp_path):
    recording = Recording.read(synthetic_run(tmp_path / "run", steps=5))
    assert [frame["run"]["step"] for frame in recording.frames] == [1, 2, 3, 4, 5, 5]
    assert "were not recorded" in recording.note
    last = recording.snapshot(5)
    assert last["run"]["phase"] == "done" and len(last["history"]) == 5
    text = "\n".join(line for page in pages(last) for line in page)
    assert "step 5/5" in text and "Blind Castle" in text and "no actor yet" in text


def test_what_cannot_be_played_back_is_one_clear_line(tmp_path, capsys):
    assert main([]) == 2 and main(["a", "b"]) == 2 and main([str(tmp_path)]) == 1
    (tmp_path / "config.yaml").write_text("{}")
    assert main([str(tmp_path)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4 and all(line.startswith("error: ") for line in errors)
    with pytest.raises(RunFolderError, match="has not finished a step"):
        Recording.read(tmp_path)


def test_the_player_moves_by_keys_and_time(watched):
    player = Player(Recording.read(watched[0]))
    whole = player.recording.seconds
    player.advance(1.0)
    assert player.at == SPEEDS[3] and not player.paused
    for key, at in (("end", whole), ("right", whole), ("home", 0.0), ("left", 0.0)):
        assert player.key(key) and player.at == at
    player.key(".")
    assert player.index == 1 and player.snapshot()["run"]["step"] == 1
    player.key("p")
    player.advance(100.0)
    assert player.index == 1 and "⏸" in player.label()
    player.key("p")
    for _ in range(20):
        player.key("+")
    assert f"{SPEEDS[-1]}×" in player.label()
    player.advance(100.0)
    assert player.at == whole and player.paused
    player.key("p")  # once more from the start
    assert player.at == 0.0 and not player.key("x")


def test_a_replay_on_a_terminal(watched):
    t = Terminal("run.py", "--role", "dashboard", str(watched[0]), width=100, height=30)
    try:
        t.wait_for("▶ 10×")
        t.send(b"p\x1b[F")  # stop; the end
        t.wait_for("step 12/60")
        t.wait_for("⏸ 10×")
        t.send(b"\x1b[H")
        t.wait_for("step 1/60")
        t.send(b"..+")
        t.wait_for("step 2/60")
        t.wait_for("⏸ 20×")
        t.send(b"4")
        t.wait_for("timeline")
        t.send(b"q")
        assert t.end() == 0 and t.given_back()
    finally:
        t.close()


def test_in_a_pipe_a_replay_is_the_log_of_the_run(watched):
    command = [sys.executable, "run.py", "--role", "dashboard", str(watched[0])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "\x1b" not in done.stdout, done.stderr
    assert [f"step {n}/60 ·" in done.stdout for n in (1, 12)] == [True, True] and done.stdout.count("step 7/60 ·") == 1


def test_dry_run_says_what_it_would_do(capsys):
    assert main(["runs/quickstart"], dry_run=True) == 0 and "runs/quickstart" in capsys.readouterr().out
