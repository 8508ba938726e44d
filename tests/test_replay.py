"""``--role replay``: the recorded groups of a run give the same gradients and the same weights again."""

from __future__ import annotations

import json

import pytest

from learner import replay
from learner.replay import Replayed, ReplayError, plan
from tests import lockstep
from tests.test_resume import save

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a finished run in lock-step: 4 steps, checkpoints 2 and 4."""
    server = lockstep.WeighingServer()
    settings = lockstep.config(tmp_path_factory.mktemp("replay") / "run", server.url, run={"steps": 4})
    with lockstep.running(settings) as run:
        run.finish()
    server.http.shutdown()
    server.http.server_close()
    return run.folder


def listing(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_a_replay_is_equal_bit_for_bit_and_touches_nothing(folder, capsys):
    before = listing(folder)
    assert replay.main([str(folder), "2"], dry_run=False) == 0
    shown = capsys.readouterr().out
    assert (
        shown.count("equal\n") == 2 and "2 steps from version 2: equal to what the run recorded, bit for bit" in shown
    )
    assert "weights: those of checkpoint-4, bit for bit" in shown
    recorded = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    norm = next(record["grad_norm"] for record in recorded if record["step"] == 3 and "eval" not in record)
    assert f"grad norm {norm:.6g} ({norm:.6g})" in shown
    assert listing(folder) == before


def test_a_changed_option_shows_by_how_much_it_changes_what(folder, capsys):
    words = [str(folder), "2", "algorithm.aggregation=sequence", "learner.optimizer.lr=1e-4"]
    assert replay.main(words, dry_run=False) == 0
    shown = capsys.readouterr().out
    assert (
        "2 of 2 steps differ, first step 3 in loss, grad_norm" in shown and "tensors differ from checkpoint-4" in shown
    )


def test_it_starts_where_a_checkpoint_and_the_groups_after_it_are(tmp_path):
    root = tmp_path / "checkpoints"
    for step in (4, 6):
        save(root, step)
    assert plan(tmp_path, [5, 6, 7, 9], None) == (4, [5, 6, 7])
    assert plan(tmp_path, [5, 6, 7, 9], 6) == (6, [7])
    assert plan(tmp_path, [1, 2], None) == (0, [1, 2])
    with pytest.raises(ReplayError, match="there are 4, 6"):
        plan(tmp_path, [5, 6, 7], 5)
    with pytest.raises(ReplayError, match=r"there is none.*checkpoint\.keep"):
        plan(tmp_path, [], None)


def test_steps_that_were_never_recorded_and_figures_that_are_no_numbers():
    assert Replayed(1, {"loss": 1.0}, None).gaps == {}
    assert Replayed(1, {"loss": 1.0, "grad_norm": 2.0}, {"loss": 1.0, "grad_norm": 1.0}).gaps == {"grad_norm": 0.5}
    assert Replayed(1, {"loss": 1.0}, {"loss": None}).gaps == {"loss": float("inf")}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name the run's folder"),
        (["no/such/run"], "is not the folder of a run"),
        (["RUN", "learner.micro_token=5"], "unknown option"),
        (["RUN", "algorithm.dynamic_sampling.rounds=2", "staleness=1"], "their order is not kept"),
        (["RUN", "3"], "starts at version 0 or a kept checkpoint"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(folder, capsys, words, says):
    assert replay.main([str(folder) if word == "RUN" else word for word in words], dry_run=False) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1
