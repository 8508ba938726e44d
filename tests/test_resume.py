"""Going on after any kill: whole checkpoints only, the same order of the data, and in lock-step the same bits."""

from __future__ import annotations

import json
import logging
import random

import pytest

import run as entry
from benchmarks import checkpoint_kills
from configs.schema import Config
from learner.gateway.ledger import Ledger
from learner.run import checkpoints
from learner.run.durable import fresh_folder_beside
from learner.run.folder import RunFolder, RunFolderError
from learner.run.resume import check_ledger
from tests import lockstep
from tests.wire_samples import group, tasks

pytestmark = pytest.mark.timeout(600)  # seconds on a free core; the first test starts the process that others fork from

# ── checkpoints ──────────────────────────────────────────────────────────────


def save(root, step, text="weights " * 100):
    aside = fresh_folder_beside(checkpoints.path_of(root, step))
    (aside / "engine").mkdir()
    (aside / "engine" / "states.pt").write_text(text)
    (aside / "random-0.pt").write_text("random")
    checkpoints.seal(aside, {"step": step})
    return checkpoints.place(aside, root, step)


def cut(folder):
    path = folder / "engine" / "states.pt"
    path.write_bytes(path.read_bytes()[:-5])


def flip(folder):
    path = folder / "engine" / "states.pt"
    path.write_bytes(path.read_bytes().replace(b"weights", b"weighty", 1))


HARM = {
    "states.pt has 795 bytes of 800": cut,
    "states.pt is not what was written": flip,
    "random-0.pt is missing": lambda folder: (folder / "random-0.pt").unlink(),
    "state.json is torn": lambda folder: (folder / "state.json").write_text('{"step": 3, "fil'),
    "there is no state.json": lambda folder: (folder / "state.json").unlink(),
}


@pytest.mark.parametrize("words", HARM)
def test_a_torn_checkpoint_is_known_and_the_one_before_it_is_taken_loudly(tmp_path, caplog, words):
    for step in (1, 2, 3):
        folder = save(tmp_path, step)
    assert checkpoints.newest_whole(tmp_path) == folder
    HARM[words](folder)
    with caplog.at_level(logging.ERROR):
        assert checkpoints.newest_whole(tmp_path) == checkpoints.path_of(tmp_path, 2)
    assert words in caplog.text and "the one before it is tried" in caplog.text


def test_what_comes_after_the_one_gone_on_from_is_undone_and_cannot_come_back(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    checkpoints.set_aside_after(tmp_path, 1)
    assert checkpoints.steps(tmp_path) == [1] and checkpoints.newest_whole(tmp_path).name == "checkpoint-1"
    save(tmp_path, 2, "other")
    assert checkpoints.prune(tmp_path, keep=2) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2", "latest"]


def test_no_checkpoint_is_a_start_and_none_that_is_whole_is_an_error(tmp_path):
    assert checkpoints.newest_whole(tmp_path) is None
    cut(save(tmp_path, 1))
    with pytest.raises(ValueError, match=r"none of the checkpoints .* is whole .* delete that folder to begin again"):
        checkpoints.newest_whole(tmp_path)


def test_what_is_measured_later_joins_a_checkpoint_without_another_copy_of_the_weights(tmp_path):
    folder = save(tmp_path, 1)
    checkpoints.amend(folder, extra={"evals": 3})
    assert checkpoints.damage(folder) is None
    assert json.loads((folder / "state.json").read_text())["extra"] == {"evals": 3}


def test_kills_while_checkpoints_are_written(capsys):
    port = lockstep.free_port()
    assert checkpoint_kills.main(["--kills", "5", "--port", str(port)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).items() >= {
        "kills": 5, "resumed": 5, "whole": 5, "failures": [],
    }.items()  # fmt: skip


# ── a run in lock-step, killed and resumed ───────────────────────────────────


@pytest.fixture(scope="module")
def server():
    server = lockstep.WeighingServer()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory):
    with lockstep.running(lockstep.config(tmp_path_factory.mktemp("lockstep") / "undisturbed", server.url)) as run:
        run.finish()
    return run


def assert_same_run(run, other):
    """Same weights to the last bit, by the same steps: whatever is not a time or a place is equal."""
    name = "export/model.safetensors"
    assert (run.folder / name).read_bytes() == (other.folder / name).read_bytes()
    mine, theirs = run.steps(), other.steps()
    assert [step["step"] for step in mine] == [1, 2, 3, 4, 5]
    for a, b in zip(mine, theirs, strict=True):
        for figure in ("loss", "grad_norm", "clip_fraction", "reward", "tokens", "staleness_max"):
            assert a[figure] == b[figure], (a["step"], figure)
    ledger = json.loads((run.folder / "summary.json").read_text())["ledger"]
    assert ledger["consumed"] == 20 and ledger["lost"] == 0


def kill_and_resume(run, after_step):
    run.until(lambda: len(run.steps()) >= after_step)
    run.learner.join(random.uniform(0, 0.2))
    run.learner.kill()
    run.learner.join()
    run.resume()


def test_a_killed_learner_goes_on_to_the_very_same_weights(server, undisturbed, tmp_path):
    """Killed before its first checkpoint, and between two, with groups of both undone and open steps in the ledger."""
    with lockstep.running(lockstep.config(tmp_path / "killed", server.url)) as run:
        kill_and_resume(run, after_step=1)
        run.actors[0].kill()
        run.actors[0] = run.start("actor", 2)
        kill_and_resume(run, after_step=3)
        run.finish()
    assert "resumed at version 2" in run.words()
    assert_same_run(run, undisturbed)


def test_a_torn_checkpoint_costs_steps_but_not_a_bit(server, undisturbed, tmp_path):
    """The groups of the steps after an older checkpoint are kept with it: they are used again, in the same order."""
    with lockstep.running(lockstep.config(tmp_path / "torn", server.url)) as run:
        run.until(lambda: (run.folder / "checkpoints" / "latest").exists() and "4" in _latest(run))
        run.learner.kill()
        run.learner.join()
        states = next((run.folder / "checkpoints" / "checkpoint-4").rglob("*model_states.pt"))
        states.write_bytes(states.read_bytes()[:-1000])
        run.resume()
        run.finish()
    assert "bytes of" in run.words() and "resumed at version 2" in run.words()
    assert_same_run(run, undisturbed)


def _latest(run):
    return (run.folder / "checkpoints" / "latest").read_text()


# ── the command line ─────────────────────────────────────────────────────────


@pytest.fixture
def begun(tmp_path):
    """A run at version 2 of 5 that was not started from the default preset."""
    config = Config.model_validate({"run": {"dir": str(tmp_path / "run"), "steps": 5}, "learner": {"groups": 6}})
    with RunFolder.open(config) as folder:
        folder.log({"step": 1})
        save(folder.checkpoints, 2)
    return tmp_path / "run"


def test_resume_takes_the_runs_own_configuration_and_changes_what_is_said(begun, capsys):
    assert entry.main(["--resume", f"run.dir={begun}", "run.steps=9", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "groups: 6" in shown and "steps: 9" in shown and "resume: true" in shown


def test_resume_with_a_preset_takes_that(begun, capsys):
    assert entry.main(["--resume", "--config", "configs/quickstart.yaml", f"run.dir={begun}", "--dry-run"]) == 0
    assert "groups: 16" in capsys.readouterr().out


def test_resume_is_for_those_who_train(capsys):
    assert entry.main(["--resume", "--role", "eval"]) == 2
    assert "--resume is not for --role eval" in capsys.readouterr().err
    assert entry.main(["--resume", "--role", "report"]) == 2


def resumed(folder, **options) -> Config:
    base = {"run": {"dir": str(folder), "steps": 5, "resume": True}, "learner": {"groups": 6}}
    return Config.model_validate(base | options)


def test_a_person_is_told_from_where_it_goes_on(begun):
    with RunFolder.open(resumed(begun, learner={"groups": 8})) as folder:
        assert "goes on from version 2 of 5 (checkpoint-2) with 0 finished groups" in folder.notes[0]
    with RunFolder.open(resumed(begun, run={"dir": str(begun), "steps": 2, "resume": True})) as folder:
        assert "give a larger run.steps" in folder.notes[0]


@pytest.mark.parametrize(
    "change",
    [{"model": {"path": "elsewhere"}}, {"learner": {"zero_stage": 2}}, {"algorithm": {"advantage": {"type": "gae"}}}],
)
def test_what_a_checkpoint_depends_on_stays_as_it_was(begun, change):
    with pytest.raises(RunFolderError, match=r"cannot go on so: .* was .* and is .* now.*all else may change") as error:
        RunFolder.open(resumed(begun, **change))
    assert "\n" not in str(error.value)
    RunFolder.open(resumed(begun)).close()  # nothing was changed, and the folder is free


def test_a_ledger_that_knows_less_than_the_checkpoint_is_not_believed(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite", tasks(4), 0)
    unit = ledger.lease()
    ledger.deliver(unit.seq, "actor", group("lease", "q0"))
    ledger.consume([unit.seq], step=1)
    ledger.close()
    check_ledger(tmp_path, 1)
    with pytest.raises(ValueError, match="ledger ends at step 1 and the checkpoint is of version 2"):
        check_ledger(tmp_path, 2)


def test_where_there_is_no_run_resume_says_so(tmp_path):
    with pytest.raises(RunFolderError, match=r"no run to resume in .*: drop --resume, or correct run.dir"):
        RunFolder.open(resumed(tmp_path / "nothing"))
