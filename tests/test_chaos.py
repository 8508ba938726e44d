"""The chaos and soak benchmarks: schedule, audit and figures. The runs themselves take minutes: `python -m benchmarks.chaos`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from xml.etree import ElementTree

import pytest

from benchmarks import chaos, soak
from benchmarks.chaos.__main__ import main
from benchmarks.chaos.audit import audit, completed, final_em
from benchmarks.chaos.schedule import QUIET_STEPS, draw
from learner.gateway.ledger import Ledger
from tests.wire_samples import group, tasks

STEPS, GROUPS = 3, 2


def test_a_schedule_is_its_seeds_and_hits_every_role_alike():
    blows = draw(20, 60, seed=3)
    assert blows == draw(20, 60, seed=3) != draw(20, 60, seed=4)
    kills = Counter(blow.role for blow in blows if blow.kind == "kill")
    assert sum(kills.values()) == 20 and max(kills.values()) - min(kills.values()) <= 1
    assert Counter(blow.kind for blow in blows) == {"kill": 20, "stop": 6, "garbage": 6}
    times = [blow.at for blow in blows]
    assert times == sorted(times) and times[0] >= QUIET_STEPS and times[-1] < 60 - QUIET_STEPS
    assert {blow.role for blow in blows if blow.engine} <= {"server"}


@pytest.fixture
def folder(tmp_path):
    """A run of 3 steps of 2 groups whose ledger and records are sound."""
    ledger = Ledger(tmp_path / "ledger.sqlite", tasks(4), 0)
    for step in range(1, STEPS + 1):
        units = [ledger.lease() for _ in range(GROUPS)]
        for unit in units:
            ledger.deliver(unit.seq, "actor-0", group("lease", unit.task.task_id))
        ledger.consume([unit.seq for unit in units], step)
    ledger.deliver(units[0].seq, "actor-0", group("lease", units[0].task.task_id))  # once more
    ledger.close()
    records = [{"step": step} for step in range(1, STEPS + 1)] + [{"step": 3, "eval": {}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = [{"dataset": name, "em": em} for name, em in (("a", 0.1), ("b", 0.2), ("a", 0.5), ("b", 0.7), ("c", 1.0))]
    summary = {"steps": STEPS, "eval": rows, "train_datasets": ["a", "b"]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def spoil(folder, statement):
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db, db:
        db.execute(statement)


def test_the_audit_of_a_sound_run(folder):
    assert audit(folder, STEPS, GROUPS) == {"lost": 0, "duplicates": 0, "copies": 1, "failed": 0}
    assert completed(folder, STEPS) and not completed(folder, STEPS + 1)
    assert final_em(folder) == 0.6


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE units SET state = 'pending', step = NULL WHERE seq = 2", {"lost": 1, "duplicates": 0}),
        ("UPDATE units SET step = 1 WHERE seq = 2", {"lost": 1, "duplicates": 1}),
        ("UPDATE units SET step = 9 WHERE seq = 2", {"lost": 1, "duplicates": 1}),
        ("DELETE FROM units WHERE seq = 2", {"lost": 2, "duplicates": 0}),
    ],
)
def test_the_audit_finds_what_is_wrong(folder, statement, found):
    spoil(folder, statement)
    assert audit(folder, STEPS, GROUPS).items() >= found.items()


def test_a_step_recorded_twice_is_a_duplicate(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    assert audit(folder, STEPS, GROUPS)["duplicates"] == 1


def test_a_wrong_option_is_one_line(capsys):
    assert main(["--steps", "3"]) == 2 and main(["no.such=1"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "error: at least 5 steps are needed, not 3" and errors[1].startswith("error: ")
    assert chaos.__doc__


def test_growth_is_told_from_warm_up_and_noise():
    times = [10.0 * n for n in range(100)]
    warming = [100 + min(n, 20) * 5 + (n % 3 - 1) for n in range(100)]
    assert abs(soak.grown(times, warming)) < 0.01
    leaking = [value + 0.3 * n for n, value in enumerate(warming)]
    assert soak.grown(times, leaking) > soak.FLAT


def test_memory_is_what_a_process_took_for_itself():
    before = soak._anonymous(os.getpid())
    taken = bytearray(os.urandom(1 << 16) * 640)  # 42 MB, every page touched
    assert 35 < soak._anonymous(os.getpid()) - before < 60 and taken
    assert soak._anonymous(2**22 + 1) == 0.0


def test_only_processes_that_were_there_all_along_have_a_curve():
    samples = [{"learner": 1.0, "actor-0": 2.0}, {"learner": 1.5}]
    assert soak.by_role(samples) == {"learner": [1.0, 1.5]} and soak.by_role([]) == {}


def test_the_curve_is_a_picture():
    times = [10.0 * n for n in range(50)]
    picture = ElementTree.fromstring(
        soak.draw(times, {"learner": [100.0 + n for n in range(50)], "actor-0": [50.0] * 50})
    )
    lines = [element for element in picture.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 2 and len(lines[0].get("points").split()) == 50
    assert soak.draw([], {}).startswith("<svg")
