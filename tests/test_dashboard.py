"""What a person sees: whole at every size and in every state of the run, and the terminal given back."""

from __future__ import annotations

import copy
import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import zmq
from rich.cells import cell_len
from rich.console import Console

from learner.dashboard import DashboardClient, LearnerRefused, LearnerSilent, plain_lines, render_svg, run_dashboard
from learner.dashboard.fleet import allot, merge
from learner.dashboard.format import clean, compact, score, seconds, share, small
from learner.dashboard.model import Snapshot
from learner.dashboard.page import Page
from learner.dashboard.plot import Level, Mark, Series, plot, trailing_mean, y_axis
from protocol.codec import decode, encode
from protocol.messages import Reject, Status, StatusRequest
from tests.synthetic_snapshot import synthetic_snapshot

ROOT = Path(__file__).parents[1]
SIZES = [(80, 24), (100, 30), (120, 36), (160, 48), (200, 60)]


def text_of(snapshot, width, height, **page) -> list[str]:
    return [line.plain for line in Page(snapshot, **page).lines(width, height)]


# ── the page ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("width", "height"), [*SIZES, (72, 20), (60, 10), (20, 3), (237, 71)])
def test_page_fills_the_window_exactly(width, height):
    lines = text_of(synthetic_snapshot(), width, height)
    assert len(lines) == height
    assert all(cell_len(line) == width for line in lines[1:-1] if line) and all(
        cell_len(line) <= width for line in lines
    )


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_page_answers_the_questions_at_every_size(width, height):
    page = "\n".join(text_of(synthetic_snapshot(), width, height))
    for fact in (
        "step 42/60",
        "0.26 → 0.76",
        "3.1×",
        "server saturated, 128 running",
        "bound η 2",
        "127.0.0.1",
        "wait 23 %",
    ):
        assert fact in page, fact
    assert "In which city" in page and "Velden" in page


def test_names_and_levels_appear_where_there_is_room():
    page = "\n".join(text_of(synthetic_snapshot(), 160, 48))
    for fact in (
        "warm start 0.26 · Naive RAG 0.24",
        "actor-1",
        "search",
        "malformed 25",
        'search(query="Northgate Pictures")',
    ):
        assert fact in page, fact


def test_start_up_shows_dashes_and_never_fails():
    for snapshot in (
        None,
        {},
        {"run": {}},
        {"history": None, "queue": [], "run": "x"},
        {"evals": [{}], "actors": [{}], "servers": [{}]},
    ):
        for size in SIZES:
            page = "\n".join(text_of(snapshot, *size))
            assert "step –/–" in page and "pipeline" in page


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from leaves(item, (*path, key))


@pytest.mark.parametrize("value", [None, "text", float("nan"), [], {}, -1])
def test_any_key_may_be_missing_or_odd(value):
    small_snapshot = synthetic_snapshot(step=1)
    for section, kept in (("actors", 1), ("evals", 2)):
        small_snapshot[section] = small_snapshot[section][:kept]
    for path in leaves(small_snapshot):
        broken = copy.deepcopy(small_snapshot)
        holder = broken
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        text_of(broken, 100, 30)
        plain_lines(small_snapshot, broken)


def test_text_from_models_and_tools_cannot_move_the_cursor():
    snapshot = synthetic_snapshot()
    evil = "\x1b[2J\x1b]0;title\x07 a\tb\r\n\u202egnp\u200b 日本語 " * 30
    snapshot["latest"]["segments"][2]["text"] = evil
    snapshot["run"]["message"] = snapshot["actors"][0]["id"] = snapshot["servers"][0]["url"] = evil
    lines = text_of(snapshot, 120, 36)
    assert all(cell_len(line) == 120 for line in lines) and "日本語" in "\n".join(lines)
    assert not any(c in "\n".join(lines).replace("\n", "") for c in "\x1b\x07\r\t\u202e\u200b")


def test_more_actors_than_lines_are_counted_and_added():
    snapshot = synthetic_snapshot()
    snapshot["actors"] = [dict(snapshot["actors"][0], id=f"actor-{i}") for i in range(50)]
    page = text_of(snapshot, 120, 36)
    row = next(line for line in page if " more " in line)
    rest = int(row.split()[1])
    assert sum("actor-" in line for line in page) + rest == 50 and compact(64 * rest) in row


def test_no_color_keeps_the_page(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=120, height=36).print(Page(synthetic_snapshot()))
    assert "38;" not in out.getvalue() and "▲ servers" in out.getvalue()


def test_page_is_cheap_to_draw():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=160, height=48)
    page = Page(synthetic_snapshot())
    costs = []
    for _ in range(10):
        start = time.thread_time()
        console.print(page)
        costs.append(time.thread_time() - start)
    assert min(costs) < 0.03  # 8 ms on an idle core; twice a second


def test_svg_is_well_formed_and_loads_nothing(tmp_path):
    render_svg(synthetic_snapshot(), 120, 36, tmp_path / "page.svg")
    text = (tmp_path / "page.svg").read_text()
    ElementTree.fromstring(text)
    assert "url(" not in text and "href" not in text and "Northgate" in text


# ── conclusions ──────────────────────────────────────────────────────────────


def changed(**sections):
    snapshot = synthetic_snapshot()
    for name, value in sections.items():
        snapshot[name] = {**snapshot[name], **value} if isinstance(value, dict) else value
    return Snapshot(snapshot)


@pytest.mark.parametrize(
    ("sections", "stage", "words"),
    [
        ({}, "servers", "server saturated, 128 running, 12 waiting"),
        ({"actors": []}, "actors", "no actor is connected"),
        ({"servers": [{"state": "excluded"}]}, "servers", "no server has the current weights"),
        ({"servers": [{"state": "updating"}]}, "servers", "weights are on their way"),
        (
            {"servers": [{"state": "current", "running": 20, "waiting": 0}]},
            "actors",
            "108 of 128 episodes are in tool calls",
        ),
        ({"servers": [{"state": "current", "running": 120}], "queue": {"leased": 60}}, "servers", "staleness bound"),
        ({"servers": [{"state": "current", "running": 120}]}, "actors", "every actor is full (16 leases)"),
        ({"run": {"phase": "eval"}}, "", "evaluation"),
        ({"history": []}, "", "the first batch is being made"),
    ],
)
def test_bottleneck(sections, stage, words):
    found = changed(**sections).bottleneck
    assert found.stage == stage and words in found.sentence


def test_bottleneck_is_the_learner_where_nothing_is_waited_for():
    snapshot = synthetic_snapshot()
    for record in snapshot["history"]:
        record["seconds"] = {"wait": 0.1, "update": 4.0, "push": 0.3, "step": 4.4}
    assert Snapshot(snapshot).bottleneck.sentence == "the learner sets the pace: 14 groups are ready (91 % busy)"
    for record in snapshot["history"]:
        record["seconds"]["push"] = 3.0
    assert "pushing weights takes 42 %" in Snapshot(snapshot).bottleneck.sentence


def test_figures_are_added_over_actors():
    s = Snapshot(synthetic_snapshot())
    assert s.tools[0]["calls"] == 19_600 and s.tools[0]["p50"] == pytest.approx(0.0021)
    assert s.faults == {"malformed": 25, "timeout": 6}
    assert s.trained == ["hotpot", "wiki2"] and s.datasets == ["hotpot", "wiki2", "musique"]
    assert sum(s.time_shares.values()) == pytest.approx(1)


def test_merge_adds_what_adds_up():
    rows = [
        {"a": 1, "version": 3, "s": {"p99": 0.5, "n": 2}, "state": "x"},
        {"a": 2, "version": 5, "s": {"p99": 0.1, "n": 1}},
    ]
    assert merge(rows) == {"a": 3, "version": 5, "s": {"p99": 0.5, "n": 3}, "state": "x"}


@pytest.mark.parametrize(
    ("wanted", "room", "given"), [([2, 1, 1], 9, [2, 1, 1]), ([9, 9, 1], 7, [3, 3, 1]), ([5, 5], 1, [1, 1])]
)
def test_allot(wanted, room, given):
    assert allot(wanted, room) == given


# ── figures and plots ────────────────────────────────────────────────────────


def test_figures():
    assert [compact(v) for v in (0, 7, 999, 1234, 47_360, 3.95e6, None, float("nan"))] == [
        "0", "7", "999", "1.23k", "47.4k", "3.95M", "–", "–"
    ]  # fmt: skip
    assert [seconds(v) for v in (0, 0.0004, 0.31, 5.44, 72, 372, 4000, None)] == [
        "0 s", "<1 ms", "310 ms", "5.4 s", "72 s", "6:12", "1:06:40", "–"
    ]  # fmt: skip
    assert [share(v) for v in (0, 0.001, 0.314, None)] == ["0 %", "<1 %", "31 %", "–"]
    assert [small(v) for v in (0, 0.042, 4.2e-5, -0.0123)] == ["0", "0.042", "4.2e−5", "−0.0123"]
    assert score(-0.001) == "0.00" and clean(" a\n\x1b[1mb ") == "a [1mb"


def test_plot_has_its_size_and_ends_where_the_data_end():
    lines = [line.plain for line in plot(60, 12, (Series(tuple((i, i / 10) for i in range(11)), ""),))]
    assert len(lines) == 12 and all(len(line) == 60 for line in lines)
    assert lines[0][-1] not in " │" and lines[-3].lstrip(" 0.┤│")[0] != " "
    assert lines[-1].split() == ["0", "2", "4", "6", "8", "step"]


def test_plot_of_nothing_one_point_and_a_flat_line():
    assert "waiting" in plot(40, 8, ())[4].plain
    for points in (((5, 0.5),), ((1, 2.0), (2, 2.0), (3, 2.0))):
        assert len(plot(40, 8, (Series(points, ""),), (Mark(*points[0], "●", ""),))) == 8


def test_level_label_is_kept_clear_of_the_curve():
    curve = Series(tuple((i, 0.5) for i in range(100)), "")
    lines = [line.plain for line in plot(60, 10, (curve,), (), (Level(0.5, "warm start 0.50", ""),), floor=0.0)]
    assert sum("warm start 0.50" in line for line in lines) == 1


def test_axis_and_mean():
    low, high, step = y_axis(0.42, 0.9, 10)
    assert low < 0.42 and high > 0.9 and step == pytest.approx(0.2)
    assert y_axis(0.1, 0.8, 10, floor=0.0)[0] == 0
    assert trailing_mean([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == ((1, 1.0), (2, 2.0), (3, 4.0))


# ── log lines ────────────────────────────────────────────────────────────────


def test_plain_lines_say_what_happened_once():
    before, after = synthetic_snapshot(39), synthetic_snapshot(40)
    after["queue"]["stale_dropped"] += 2
    after["actors"] = after["actors"][:1]
    after["servers"][0]["state"] = "excluded"
    lines = "\n".join(plain_lines(before, after))
    assert lines.count("step 40/60 · reward") == 1 and "step 39/60" not in lines
    assert "eval version 40: hotpot em 0.79" in lines
    assert "actor actor-1 left" in lines and "2 groups dropped as too stale" in lines
    assert "server http://127.0.0.1:8100 is excluded" in lines
    assert plain_lines(after, after) == []


def test_plain_lines_from_the_start_and_at_the_end():
    done = synthetic_snapshot()
    done["run"]["phase"] = "done"
    lines = plain_lines(None, done)
    assert sum("step " in line and "reward" in line for line in lines) == 42
    assert "eval Naive RAG: hotpot em 0.27" in "\n".join(lines) and "done" in lines[-1]


# ── client and terminal ──────────────────────────────────────────────────────


class FakeGateway:
    """Answers status requests on a real ROUTER socket."""

    def __init__(self, answer):
        self.answer, self.requests = answer, []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(timeout=5)
        self._context.destroy(linger=0)

    def _run(self):
        while not self._over.is_set():
            if self._socket.poll(50):
                identity, *frames = self._socket.recv_multipart()
                request, _ = decode(frames)
                assert isinstance(request, StatusRequest)
                self.requests.append(request)
                if (answer := self.answer(request)) is not None:
                    self._socket.send_multipart([identity, *encode(answer)])


def status_at(step):
    def answer(request):
        snapshot = synthetic_snapshot(step)
        snapshot["history"] = [r for r in snapshot["history"] if r["step"] >= request.since_step]
        return Status(snapshot=snapshot)

    return answer


def test_client_keeps_the_history_and_asks_for_the_new_steps_only():
    with FakeGateway(status_at(10)) as gateway, DashboardClient(gateway.address) as client:
        assert len(client.snapshot()["history"]) == 10
        gateway.answer = status_at(12)
        assert [r["step"] for r in client.snapshot()["history"]] == list(range(1, 13))
        assert gateway.requests[-1].since_step == 10
        gateway.answer = status_at(5)  # the learner went back to a checkpoint
        assert [r["step"] for r in client.snapshot()["history"]] == list(range(1, 6))


def test_client_gives_up_in_time_and_recovers():
    with FakeGateway(lambda request: None) as gateway, DashboardClient(gateway.address) as client:
        start = time.monotonic()
        with pytest.raises(LearnerSilent, match=gateway.address):
            client.snapshot(timeout_s=0.3)
        assert time.monotonic() - start < 2
        gateway.answer = status_at(3)
        assert client.snapshot()["run"]["step"] == 3


def test_client_passes_a_refusal_on():
    with (
        FakeGateway(lambda request: Reject(reason="another protocol")) as gateway,
        DashboardClient(gateway.address) as client,
        pytest.raises(LearnerRefused, match="another protocol"),
    ):
        client.snapshot()


@pytest.mark.parametrize(
    ("address", "words"),
    [("tcp://127.0.0.1:9", "no learner answers at tcp://127.0.0.1:9"), ("nonsense", "not an address")],
)
def test_no_learner_is_one_clear_line(address, words, capsys):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert run_dashboard(address, connect_s=0.3) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


class Terminal:
    """A dashboard process on a pseudo-terminal of its own."""

    def __init__(self, address):
        self.master, slave = pty.openpty()
        code = (
            f"import sys; from learner.dashboard import run_dashboard; sys.exit(run_dashboard({address!r}, lost_s=1.0))"
        )
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "36"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=env,
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""

    def read_until(self, words, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while words not in self.screen:
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} did not appear; the screen ends with {self.screen[-300:]!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.screen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert words in self.screen, self.screen[-300:]

    def end(self):
        self.read_until("\x1b[?1049l")  # left the alternate screen
        code = self.process.wait(timeout=10)
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.screen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # read to the end
                break
        assert self.screen.rindex("\x1b[?1049l") > self.screen.rindex("\x1b[?1049h")
        assert self.screen.rindex("\x1b[?25h") > self.screen.rindex("\x1b[?25l")  # the cursor is back
        os.close(self.master)
        return code


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda t: os.write(t.master, b"q"), 0),
        (lambda t: t.process.send_signal(signal.SIGINT), 0),
        (lambda t: t.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda t: t.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["q", "SIGINT", "SIGTERM", "SIGHUP"],
)
def test_terminal_is_given_back(end, code):
    with FakeGateway(status_at(4)) as gateway:
        terminal = Terminal(gateway.address)
        try:
            terminal.read_until("pipeline")
            end(terminal)
            assert terminal.end() == code
        finally:
            terminal.process.kill()


def test_keys_pause_and_help_and_the_learner_going_away():
    with FakeGateway(status_at(4)) as gateway:
        terminal = Terminal(gateway.address)
        try:
            terminal.read_until("pipeline")
            os.write(terminal.master, b"?")
            terminal.read_until("this help")
            os.write(terminal.master, b"?")
            os.write(terminal.master, b"p")
            terminal.read_until("paused")
            os.write(terminal.master, b"p")
            gateway.answer = lambda request: None
            assert terminal.end() == 1
            assert "has not answered for" in terminal.screen
        finally:
            terminal.process.kill()


def test_without_a_terminal_there_are_log_lines():
    def done(request):
        status = status_at(3)(request)
        status.snapshot["run"]["phase"] = "done"
        if len(gateway.requests) > 1:
            return None
        return status

    with FakeGateway(done) as gateway:
        code = f"import sys; from learner.dashboard import run_dashboard; sys.exit(run_dashboard({gateway.address!r}))"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert ran.returncode == 0 and "\x1b" not in ran.stdout
    assert "step 3/60" in ran.stdout and "done" in ran.stdout


def test_dashboard_needs_no_torch():
    code = "import sys, learner.dashboard, learner.run.folder, learner.run.summary, learner.run.transcript; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ran.stdout.strip() == "False", ran.stderr
