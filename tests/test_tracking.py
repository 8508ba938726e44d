"""Trackers get every record, and nothing that they do holds up or ends a run."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import types

import pytest

from configs.schema import Config
from learner.run import tracking
from learner.run.folder import RunFolder, RunFolderError
from learner.run.tracking import Background, TrackerMissing, open_trackers


class Service:
    """What it was asked, and a way to misbehave."""

    def __init__(self, **acts):
        self.acts, self.records, self.done = acts, [], []

    def start(self):
        self.acts.get("start", lambda: None)()
        self.done.append("start")

    def log(self, values, step):
        self.acts.get("log", lambda: None)()
        self.records.append((values, step))

    def finish(self):
        self.acts.get("finish", lambda: None)()
        self.done.append("finish")


def fail(error):
    def act():
        raise error

    return act


def test_records_arrive_flat_and_in_order():
    service = Service()
    tracker = Background("it", service)
    for step in (1, 2):
        tracker.add({"step": step, "loss": 0.5, "em": {"hotpot": 1.0}, "note": "text"})
    tracker.add({"step": 2, "eval": {"dataset": "hotpot", "em": 0.25, "version": 2}})
    tracker.close()
    assert [step for _, step in service.records] == [1, 2, 2] and service.done == ["start", "finish"]
    assert service.records[0][0] == {"train/step": 1.0, "train/loss": 0.5, "train/em/hotpot": 1.0}
    assert service.records[2][0] == {"eval/hotpot/em": 0.25}


def test_nothing_is_started_before_the_first_record():
    service = Service()
    Background("it", service).close()
    assert service.done == []


@pytest.mark.parametrize("error", [RuntimeError("not logged in"), SystemExit(1), KeyboardInterrupt()])
def test_a_service_that_cannot_start_is_given_up(caplog, error):
    tracker = Background("it", Service(start=fail(error)))
    for step in range(3):
        tracker.add({"step": step})
    tracker.close()
    assert tracker.dropped == 3 and caplog.text.count("could not be started") == 1
    assert "it lacks 3 records" in caplog.text


def test_errors_are_logged_once_a_kind(caplog):
    errors = iter([ValueError("a"), ValueError("b"), OSError("c")])
    tracker = Background("it", Service(log=lambda: (_ for _ in ()).throw(next(errors))))
    for step in range(3):
        tracker.add({"step": step})
    tracker.close()
    assert caplog.text.count("refused a record") == 2 and tracker.dropped == 3


def test_a_service_that_hangs_holds_nothing_up(caplog):
    """Records are dropped and counted once its queue is full; the end waits its time and no longer."""
    release = threading.Event()
    tracker = Background("it", Service(log=lambda: release.wait(timeout=30)), finish_s=0.2, most_waiting=2)
    began = time.monotonic()
    for step in range(50):
        tracker.add({"step": step})
    tracker.close()
    assert time.monotonic() - began < 5 and tracker.dropped >= 47
    assert caplog.text.count("further ones are dropped") == 1 and "did not finish within 0.2 s" in caplog.text
    release.set()


def test_one_that_is_not_installed_is_named_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None if name == "wandb" else object())
    config = Config(run={"dir": tmp_path / "run"}, log={"trackers": ["tensorboard", "wandb"]})
    with pytest.raises(TrackerMissing, match=r"log\.trackers: wandb is not installed: pip install wandb"):
        open_trackers(config, tmp_path)
    with pytest.raises(RunFolderError, match="wandb is not installed"):
        RunFolder.open(config)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def packages(monkeypatch):
    """Stand-ins for both packages; name → what their run was given."""
    seen = {}

    def package(name):
        calls = seen[name] = {"init": [], "log": [], "finished": 0}

        class Run:
            def define_metric(self, *args, **kwargs):
                pass

            def log(self, values, step=None):
                calls["log"].append((values, step))

            def finish(self):
                calls["finished"] += 1

        def init(**options):
            calls["init"].append(options)
            return Run()

        module = types.ModuleType(name)
        module.init, module.Settings = init, dict
        module.__spec__ = types.SimpleNamespace(name=name)
        monkeypatch.setitem(sys.modules, name, module)

    for name in ("wandb", "trackio"):
        package(name)
    return seen


def test_a_run_and_its_resumption_are_one_run_of_both_services(tmp_path, packages):
    args = {"tools": [{"path": "http", "args": {"headers": {"Authorization": "secret"}}}]}
    options = {"log": {"trackers": ["wandb", "trackio"], "project": "mine"}, "env": {"args": args}}
    for resume in (False, True):
        config = Config(run={"dir": tmp_path / "blue", "resume": resume}, **options)
        with RunFolder.open(config) as folder:
            if resume:
                folder.truncate_metrics(1)
            folder.log({"step": 1 + resume, "reward": 0.5})
    wandb, trackio = packages["wandb"], packages["trackio"]
    assert [i["id"] for i in wandb["init"]] == [wandb["init"][0]["id"]] * 2
    assert [i["name"] for i in trackio["init"]] == [trackio["init"][0]["name"]] * 2
    assert all(i["project"] == "mine" and i["resume"] == "allow" for s in packages.values() for i in s["init"])
    assert wandb["init"][0]["name"] == "blue" and wandb["init"][0]["dir"] == str(tmp_path / "blue")
    assert wandb["log"][1] == ({"train/step": 2.0, "train/reward": 0.5, "step": 2}, None)
    assert trackio["log"][1] == ({"train/step": 2.0, "train/reward": 0.5}, 2)
    assert wandb["finished"] == trackio["finished"] == 2
    assert "secret" not in json.dumps(wandb["init"]) + json.dumps(trackio["init"])


def test_metrics_are_on_disk_whatever_a_tracker_does(tmp_path, caplog):
    folder = RunFolder(tmp_path, [Background("it", Service(start=fail(RuntimeError("down"))))])
    with caplog.at_level(logging.WARNING):
        folder.log({"step": 1})
        folder.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1} and "down" in caplog.text
