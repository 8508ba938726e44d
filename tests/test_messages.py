"""What a person and a log collector read: progress with and without a terminal, errors in one line, logs of one form."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from rich.console import Console

import tools.progress
from configs.load import load_config
from configs.logs import fail, failure, setup_logging
from configs.schema import LogConfig
from learner.dashboard.diagnosis import bottleneck
from learner.dashboard.fleet import actor_row
from learner.dashboard.format import share
from learner.dashboard.live import PlainView
from learner.dashboard.model import Snapshot
from learner.dashboard.plot import trailing_mean
from learner.run.announce import announcement
from learner.run.disk import disk_trouble
from learner.run.folder import RunFolder
from learner.servers.causes import cause, newest
from learner.servers.processes import Child
from learner.servers.serving import ServerError, check_port
from learner.stopping import Stopped, StopSignals
from tests.terminal import Terminal
from tests.wire_samples import free_port
from tools.progress import Pace, progress, waiting

ROOT = Path(__file__).parents[1]


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "run.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout + done.stderr


# ── logs ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def logged(tmp_path):
    """``logged(**options)`` sets logging up; its result reads the lines back. The test's own handlers come back."""
    root, ours = logging.getLogger(), logging.getLogger("rollway")
    before = root.handlers[:], root.level, ours.level

    def start(**options):
        path = tmp_path / "log"
        logging.captureWarnings(False)  # else an earlier test's capture, which pytest undid, counts as ours
        setup_logging(LogConfig(**options), logging.FileHandler(path))
        return lambda: path.read_text().splitlines()

    yield start
    logging.captureWarnings(False)
    root.handlers[:], level, own = before
    root.setLevel(level)
    ours.setLevel(own)


def events() -> None:
    log = logging.getLogger("rollway.learner")
    log.info("step %d:\nreward", 3)
    log.debug("too fine")
    logging.getLogger("httpx").info("GET /")
    warnings.warn("an old name", stacklevel=1)
    try:
        raise RuntimeError("no luck")
    except RuntimeError:
        log.exception("it failed")


def test_json_is_an_object_a_line_with_the_traceback_in_a_field(logged):
    lines = logged(format="json")
    events()
    fail("the port is in use", 3)
    rows = [json.loads(line) for line in lines()]
    assert [(r["level"], r["logger"]) for r in rows] == [
        ("info", "rollway.learner"), ("warning", "py.warnings"), ("error", "rollway.learner"), ("critical", "rollway"),
    ]  # fmt: skip
    assert rows[0]["message"] == "step 3:\nreward" and rows[0]["time"].endswith("Z")
    assert "RuntimeError: no luck" in rows[2]["traceback"] and "traceback" not in rows[0]
    assert failure(lines()[-1]) == "the port is in use" and failure(lines()[0]) is None


def test_text_is_a_line_an_event_from_the_level_on(logged, capsys):
    lines = logged(level="warning")
    events()
    assert fail("the port is in use", 3) == 3
    assert not any("step 3" in line for line in lines()) and "WARNING py.warnings:" in lines()[0]
    assert lines()[-1] == "RuntimeError: no luck"
    assert failure(capsys.readouterr().err.strip()) == "the port is in use"


def test_a_message_of_two_lines_is_one_line_and_debug_shows_libraries(logged):
    lines = logged(level="debug")
    events()
    assert lines()[0].endswith("INFO rollway.learner: step 3: reward")
    assert any("too fine" in line for line in lines()) and any("httpx: GET /" in line for line in lines())


def test_libraries_with_handlers_of_their_own_log_as_we_do(logged):
    library = logging.getLogger("transformers")
    library.addHandler(logging.StreamHandler())
    library.propagate = False
    lines = logged(format="json")
    library.warning("deprecated")
    assert json.loads(lines()[-1])["message"] == "deprecated" and not library.handlers


# ── progress ─────────────────────────────────────────────────────────────────


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(tools.progress.Pace, "due", lambda self: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with progress("index", 10, done=4, say=said.append) as advance:
        advance(3, "half way")
        advance(3)
    with waiting(said.append) as say:
        say("waiting for the server: 3 s of 600 s")
    assert said[:3] == ["index: goes on at 4 of 10", "index: 7 of 10, half way", "index: 10 of 10"]
    assert said[3].startswith("index: 6 done in") and said[4] == "waiting for the server: 3 s of 600 s"


def test_a_pace_is_due_once_in_its_time():
    pace = Pace(0.05)
    assert not pace.due()
    time.sleep(0.06)
    assert pace.due() and not pace.due()


SHOW = """
import time
from tools.progress import progress, waiting
with waiting() as say:
    for second in range(30):
        say(f"waiting for the server: {second} s of 600 s [bold]")
        time.sleep(0.1)
with progress("episodes", 30) as advance:
    for _ in range(30):
        advance()
        time.sleep(0.1)
"""


def test_in_a_terminal_it_is_one_line_that_moves():
    terminal = Terminal("-c", SHOW)
    try:
        terminal.wait_for("s of 600 s [bold]")
        terminal.wait_for("/30")
        assert terminal.end() == 0
        assert next(line.strip() for line in terminal.screen.display if line.strip()).startswith("episodes: 30 done in")
    finally:
        terminal.close()


def test_the_plain_view_says_how_far_it_is_when_nothing_happens(monkeypatch, capsys):
    view = PlainView(Console(width=200))
    picture = {"run": {"phase": "eval", "started_at": 0, "now": 65, "scoring": "naive_rag", "evaluation": (134, 600)}}
    view.update(picture)
    view.update(picture)
    assert "134" not in capsys.readouterr().out
    monkeypatch.setattr(tools.progress.Pace, "due", lambda self: True)
    view.update(picture)
    assert capsys.readouterr().out == "[1:05] evaluation of naive_rag: 134 of 600 episodes; training waits\n"
    view.update(picture, "no answer for 11 s")
    view.update(picture, "no answer for 12 s")
    view.update(picture, "actor-0 had died")
    view.update(picture, "actor-1 had died")
    told = capsys.readouterr().out
    assert told.count("no answer") == 1 and told.count("had died") == 2
    run = {"phase": "update", "step": 4, "steps": 60, "phase_since": 30, "now": 65, "started_at": 0}
    view.update({"run": run, "actors": [{"id": "actor-0"}]})  # the line is that it joined
    view.update({"run": run, "actors": [{"id": "actor-0"}]})
    assert "step 5/60: update for 35 s" in capsys.readouterr().out


def test_while_it_starts_the_servers_log_is_shown():
    run = {"phase": "start", "message": "waiting for the server: 3 s of 600 s", "server_says": "Loading weights"}
    sentence = bottleneck(Snapshot({"run": run})).sentence
    assert sentence == "starting: waiting for the server: 3 s of 600 s · its log: Loading weights"


def test_the_start_says_what_is_where_and_what_comes_next(tmp_path):
    config = load_config(overrides=[f"run.dir={tmp_path}/r", "gateway.port=5701", "metrics.port=9401", "staleness=0"])
    text = "\n".join(announcement(config, RunFolder(tmp_path / "r"), local=True))
    for words in ("lock-step", f"{tmp_path}/r/logs", "http://127.0.0.1:8100 (started here)", "tcp://127.0.0.1:5701",
                  "--role dashboard gateway.port=5701", ":9401/metrics", "naive_rag and version 0 are scored"):  # fmt: skip
        assert words in text
    again = announcement(
        config.model_copy(update={"run": config.run.model_copy(update={"resume": True})}), RunFolder(tmp_path)
    )
    assert "goes on from the last checkpoint" in again[-1] and "scored" not in again[-1]


# ── errors ───────────────────────────────────────────────────────────────────

PREFIX = "(EngineCore pid=12) ERROR 12-01 03:54:16 [core.py:1]"


@pytest.mark.parametrize(
    ("lines", "found", "helps"),
    [
        ([f"{PREFIX} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", f"{PREFIX} shutting down",
          "RuntimeError: Engine core initialization failed. See root cause above."], "torch.OutOfMemoryError: CUDA", "lower"),
        (["ValueError: To serve at least one request, 9 GiB KV cache is needed, which is larger than the available KV "
          "cache memory"], "ValueError: To serve", "model.max_tokens"),
        ([f"{PREFIX} ValueError: Available memory on node 0 (17.1/23.54 GiB) on kv cache allocation is less than requested "
          "memory for kv (2000.0 GiB). Decrease --kv-cache-memory-bytes",
          "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"],
         "ValueError: Available", "lower server.kv_cache_gib"),
        (["INFO: fine", "Killed"], "Killed", ""),
        ([], "", ""),
    ],
)  # fmt: skip
def test_the_cause_is_found_among_what_a_server_wrote(lines, found, helps):
    text = cause(lines)
    assert text.startswith(found) and helps in text and "Engine core" not in text and PREFIX not in text


def test_the_newest_line_is_vllms_own():
    own = "(APIServer pid=1) INFO 12-01 03:54:16 [model.py:3] Loading weights"
    assert newest([own, "  warnings.warn("]) == "Loading weights"
    assert len(newest([own + ", block_size=16" * 200])) <= 100  # vLLM logs its whole configuration in one line
    assert newest(["Triton is installed"]) == newest([]) == ""


def test_last_words_are_read_in_both_forms(tmp_path):
    for text in ("error: no luck\n", '{"time": "t", "level": "critical", "logger": "rollway", "message": "no luck"}\n'):
        child = Child("x", [sys.executable, "-c", f"print({text!r}, end='')"], {}, tmp_path / "log")
        child.start()
        child.process.wait(20)
        assert child.last_words() == "no luck"


def test_a_full_disk_is_told_from_other_errors(tmp_path):
    full = RuntimeError("the gateway's thread died")
    full.__cause__ = sqlite3.OperationalError("database or disk is full")
    for error in (OSError(28, "No space left on device"), OSError(30, "Read-only file system"), full):
        assert "make room" in disk_trouble(error, tmp_path) and "--resume" in disk_trouble(error, tmp_path)
    assert disk_trouble(OSError(111, "refused"), tmp_path) is None


def test_a_port_in_use_names_the_option_to_change():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for section in ("server", "gateway"):
            with pytest.raises(ServerError, match=rf"port {port} .* is in use: .* {section}\.port"):
                check_port("127.0.0.1", port, section)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run.dir=/proc/nothing"], 1, "run.dir: /proc/nothing cannot be used"),
        (["--role", "retriever", "retriever.corpus={not_json}"], 2, "corpus.jsonl:2: not valid JSON"),
        (
            ["--role", "actor", "gateway.port={port}", "actor.connect_timeout_s=1"],
            1,
            "start it with `python run.py --role",
        ),
        (["--role", "actor", "gateway.keys={missing}"], 3, "copy"),
        (["--role", "browse", "{missing}"], 1, "give the folder that run.dir named"),
        (["model.path={missing}", "run.dir={missing}/run", "server.port={port}"], 1, "no such model folder"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(tmp_path, words, code, says):
    (tmp_path / "corpus.jsonl").write_text('{"id": 1, "title": "a", "text": "b"}\nnot json\n')
    known = {"not_json": tmp_path / "corpus.jsonl", "missing": tmp_path / "missing", "port": free_port()}
    found, text = run(*(word.format(**known) for word in words))
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert found == code and len(errors) == 1 and says in errors[0] and "Traceback" not in text, text


# ── the end ──────────────────────────────────────────────────────────────────


def test_signals_are_counted_and_end_loops():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signals = StopSignals()
        signals.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            signals.check()
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.count == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ── figures ──────────────────────────────────────────────────────────────────


def test_nothing_is_minus_zero():
    assert share(-0.0) == share(-1e-17) == share(-0.001) == "0 %" and share(0.001) == "<1 %" and share(-0.12) == "−12 %"
    values = [0.1, 0.2, 0.3] + [0.0] * 9
    assert trailing_mean(list(enumerate(values)), 4)[-1][1] == 0.0


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"held": 3, "evaluating": 0, "capacity": 16}, "3/16"),
        ({"held": 114, "evaluating": 114, "capacity": 16}, "114 eval"),
        ({"held": 10, "evaluating": 7, "capacity": 16}, "3/16 +7 eval"),
        ({"held": 3, "capacity": 16}, "3/16"),
    ],
)
def test_leases_tell_groups_from_episodes_of_an_evaluation(row, shown):
    assert shown in actor_row({"id": "actor-0", **row}, Snapshot({}))
