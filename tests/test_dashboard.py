"""What a person sees: whole at every size and in every state of the run, and the right conclusions."""

from __future__ import annotations

import copy
import io
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console

from learner.dashboard import App, plain_lines, render_svg
from learner.dashboard.app import PAGES
from learner.dashboard.diagnosis import actor_health, bottleneck, fleet_sentence, server_health
from learner.dashboard.episode import why
from learner.dashboard.fleet import allot, merge
from learner.dashboard.format import clean, compact, score, seconds, share, small
from learner.dashboard.model import Snapshot
from learner.dashboard.plot import Level, Mark, Series, plot, trailing_mean, y_axis
from learner.dashboard.timeline import spans
from learner.dashboard.tools import FAULTS, meaning
from tests.synthetic_snapshot import synthetic_snapshot
from tools.base import Fault

SIZES = [(80, 24), (100, 30), (120, 36), (160, 48), (200, 60)]


def app_of(snapshot, page="overview", keys=()):
    app = App()
    app.observe(snapshot)
    app.page = page
    for key in keys:
        app.key(key)
    return app


def text_of(snapshot, width, height, page="overview", keys=()) -> list[str]:
    return [line.plain for line in app_of(snapshot, page, keys).lines(width, height)]


# ── the page ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "height"), [*SIZES, (72, 20), (60, 10), (20, 3), (3, 1), (237, 71)])
def test_page_fills_the_window_exactly(width, height, page):
    lines = text_of(synthetic_snapshot(), width, height, page)
    assert len(lines) == height and all(cell_len(line) == width for line in lines)


GOLDEN = Path(__file__).parent / "pages"


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 36)])
def test_page_is_as_it_was_looked_at_last(width, height, page):
    """A change that is wanted: delete the file, run this test twice, and look at what it wrote."""
    now = "\n".join(text_of(synthetic_snapshot(), width, height, page)) + "\n"
    file = GOLDEN / f"{page}-{width}x{height}.txt"
    if not file.exists():
        file.write_text(now, encoding="utf-8")
        pytest.fail(f"{file} was not there and has been written: look at it")
    assert now == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_overview_answers_the_questions_at_every_size(width, height):
    page = "\n".join(text_of(synthetic_snapshot(), width, height))
    for fact in (
        "step 42/60",
        "0.26 → 0.76",
        "3.1×",
        "actors wait for the server: 128 requests run, 12 queue",
        "▲ servers 1/1",
        "3.95k tok/s",
        "14 ready",
        "wait 25 %",
        "all well",
    ):
        assert fact in page, fact
    assert "In which city" in page and "Velden" in page


def test_names_and_levels_appear_where_there_is_room():
    page = "\n".join(text_of(synthetic_snapshot(), 160, 48))
    for fact in (
        "warm start 0.26 · Naive RAG 0.24",
        "actor-1",
        "127.0.0.1",
        'search(query="Northgate Pictures")',
        "bound η 2",
    ):
        assert fact in page, fact


@pytest.mark.parametrize(
    ("page", "facts"),
    [
        ("curves", ("entropy", "KL", "staleness", "bound η 2", "exact match", "step")),
        (
            "fleet",
            ("actor-1", "v41", "5.51k", "8/8", "2.01k", "610 ms", "1.9 s", "now", "127.0.0.1:8100", "45 %", "71 %"),
        ),
        ("learner", ("░ wait", "▒ forward", "█ backward", "▚ step", "▓ push", "ESS 95 %", "2-3", "lost 0")),
        ("tools", ("19,600", "19 ms", "tool.malformed", "policy", "not JSON or not closed", "31 in 30,240 turns")),
        (
            "episode",
            ("v41–42", "search answered (3 ms)", "+1.00", "solved", "step 42", "Northgate Pictures is a company"),
        ),
    ],
)
def test_each_page_has_its_facts(page, facts):
    text = "\n".join(text_of(synthetic_snapshot(), 140, 40, page))
    for fact in facts:
        assert fact in text, fact


def test_start_up_shows_dashes_and_never_fails():
    for snapshot in (
        None,
        {},
        {"run": {}},
        {"history": None, "queue": [], "run": "x"},
        {"evals": [{}], "actors": [{}], "servers": [{}]},
    ):
        for size in SIZES:
            for page in PAGES:
                text = "\n".join(text_of(snapshot, *size, page))
                assert "step –/–" in text and page in text


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from leaves(item, (*path, key))


#: Section of the snapshot → pages that read it.
READERS = {
    "actors": ("overview", "fleet", "tools"),
    "servers": ("overview", "fleet"),
    "history": ("overview", "curves", "learner"),
    "latest": ("overview", "episode"),
}


@pytest.mark.parametrize("value", [None, "text", float("nan"), [], {}, -1])
def test_any_key_may_be_missing_or_odd(value):
    small_snapshot = synthetic_snapshot(step=1)
    for section, kept in (("actors", 1), ("evals", 2)):
        small_snapshot[section] = small_snapshot[section][:kept]
    small_snapshot["latest"]["segments"] = small_snapshot["latest"]["segments"][:2]
    del small_snapshot["history"][0]["by_staleness"]["1"]
    for path in leaves(small_snapshot):
        broken = copy.deepcopy(small_snapshot)
        holder = broken
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        for page in READERS.get(path[0], ("overview",)):
            text_of(broken, 80, 24, page)
        plain_lines(small_snapshot, broken)


def test_text_from_models_and_tools_cannot_move_the_cursor():
    snapshot = synthetic_snapshot()
    evil = "\x1b[2J\x1b]0;title\x07 a\tb\r\n\u202egnp\u200b 日本語 " * 30
    snapshot["latest"]["segments"][2]["text"] = evil
    snapshot["run"]["message"] = snapshot["actors"][0]["id"] = snapshot["servers"][0]["url"] = evil
    snapshot["actors"][1]["stats"]["faults"] = {evil: 3}
    snapshot["actors"][1]["stats"]["tools"] = {evil: {"calls": 3}}
    snapshot["latest"]["tool_calls"] = [{"turn": 0, "name": evil, "fault": evil}]
    for page in PAGES:
        lines = text_of(snapshot, 120, 36, page)
        assert all(cell_len(line) == 120 for line in lines)
        assert not any(c in "\n".join(lines).replace("\n", "") for c in "\x1b\x07\r\t\u202e\u200b")
    assert "日本語" in "\n".join(lines)


def test_more_actors_than_lines_are_counted_and_added():
    snapshot = synthetic_snapshot()
    snapshot["actors"] = [dict(snapshot["actors"][0], id=f"actor-{i}") for i in range(50)]
    page = text_of(snapshot, 120, 36)
    row = next(line for line in page if " more " in line)
    rest = int(row.split()[1])
    assert sum("actor-" in line for line in page) + rest == 50 and compact(64 * rest) in row


def test_page_is_cheap_to_draw():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=160, height=48)
    app, costs = app_of(synthetic_snapshot()), []
    for _ in range(10):
        start = time.thread_time()
        for line in app.lines(160, 48):
            console.print(line)
        costs.append(time.thread_time() - start)
    assert min(costs) < 0.04  # 10 ms on an idle core; twice a second


def test_svg_is_well_formed_and_loads_nothing(tmp_path):
    lines = app_of(synthetic_snapshot()).lines(120, 36)
    render_svg(lines, tmp_path / "page.svg")
    text = (tmp_path / "page.svg").read_text()
    ElementTree.fromstring(text)
    assert "url(" not in text and "href" not in text and "Northgate" in text and "#5fb3d4" in text
    render_svg(lines, tmp_path / "plain.svg", colour=False)
    plain = (tmp_path / "plain.svg").read_text()
    assert "Northgate" in plain and "#5fb3d4" not in plain


# ── keys ─────────────────────────────────────────────────────────────────────


def test_keys_turn_the_pages():
    app = app_of(synthetic_snapshot())
    for number, page in enumerate(PAGES, start=1):
        app.key(str(number))
        assert app.page == page
    app.key("tab")
    assert app.page == PAGES[0]
    app.key("backtab")
    assert app.page == PAGES[-1] and not app.over
    app.key("q")
    assert app.over


def test_a_pause_holds_the_picture():
    app = app_of(synthetic_snapshot(10), keys="p")
    app.observe(synthetic_snapshot(11))
    assert "step 10/60" in app.lines(100, 30)[0].plain and "paused" in app.lines(100, 30)[-1].plain
    app.key("p")
    app.observe(synthetic_snapshot(11))
    assert "step 11/60" in app.lines(100, 30)[0].plain


def test_help_opens_scrolls_and_closes():
    app = app_of(synthetic_snapshot(), keys="?")
    first = "\n".join(line.plain for line in app.lines(80, 20))
    assert "the pages" in first and "malformed" not in first
    for _ in range(20):
        app.key("down")
    assert "malformed" in "\n".join(line.plain for line in app.lines(80, 20))
    app.key("x")
    assert "pipeline" in "\n".join(line.plain for line in app.lines(80, 24))


def test_the_filter_keeps_rows_with_all_its_words():
    app = app_of(synthetic_snapshot(), "fleet", ["/", *"actor-1 well", "enter"])
    text = "\n".join(line.plain for line in app.lines(120, 30))
    assert "actor-1" in text and "actor-0" not in text and "filter: actor-1 well" in text
    app.key("esc")
    assert "actor-0" in "\n".join(line.plain for line in app.lines(120, 30))
    app.key("/")
    for key in ("x", "backspace", "q", "esc"):  # typed, not obeyed
        app.key(key)
    assert not app.over and app.query == ""


def test_earlier_episodes_can_be_read_and_filtered():
    app = App()
    for step, answer in ((1, "Velden"), (2, "Rome"), (3, "Oslo")):
        snapshot = synthetic_snapshot(step)
        said = {"role": "policy", "text": f"<answer>{answer}</answer>", "version": step}
        snapshot["latest"]["segments"] = [*snapshot["latest"]["segments"][:-1], said]
        snapshot["latest"]["metrics"] = {"em": float(answer == "Velden")}
        app.observe(snapshot)
    app.page = "episode"

    def text():
        return "\n".join(line.plain for line in app.lines(100, 30))

    assert "Oslo" in text()
    app.key("left")
    assert "Rome" in text() and "1 back" in text()
    for key in ("esc", "/", *"solved", "enter"):
        app.key(key)
    assert "Velden" in text()
    for key in ("/", *" nonsense", "enter"):
        app.key(key)
    assert "no episode seen so far passes" in text()


def test_a_long_list_scrolls():
    snapshot = synthetic_snapshot()
    snapshot["actors"] = [dict(snapshot["actors"][0], id=f"actor-{i:03}") for i in range(60)]
    app = app_of(snapshot, "fleet")
    assert "actor-000" in "\n".join(line.plain for line in app.lines(100, 30))
    app.key("end")
    text = "\n".join(line.plain for line in app.lines(100, 30))
    assert "actor-059" in text and "actor-000" not in text and "of 60" in text


# ── conclusions ──────────────────────────────────────────────────────────────


def changed(**sections):
    snapshot = synthetic_snapshot()
    for name, value in sections.items():
        snapshot[name] = {**snapshot[name], **value} if isinstance(value, dict) else value
    return Snapshot(snapshot)


@pytest.mark.parametrize(
    ("sections", "stage", "words"),
    [
        ({}, "servers", "actors wait for the server: 128 requests run, 12 queue; the learner waits 26 % of the time"),
        (
            {"servers": [{"state": "current", "running": 90, "waiting": 0, "kv_usage": 0.93}]},
            "servers",
            "KV cache 93 %",
        ),
        ({"run": {"message": "no group for 45 s: 2 actors hold 16 leases"}}, "", "no group for 45 s"),
        ({"actors": []}, "actors", "no actor is connected"),
        ({"servers": [{"state": "excluded"}]}, "servers", "no server has the current weights"),
        ({"servers": [{"state": "updating"}]}, "servers", "weights are on their way"),
        (
            {"servers": [{"state": "current", "running": 20, "waiting": 0}]},
            "actors",
            "108 of 128 episodes are in tools or the actor",
        ),
        (
            {"servers": [{"state": "current", "running": 120}], "queue": {"leased": 60}},
            "servers",
            "the staleness bound admits no more",
        ),
        (
            {"servers": [{"state": "current", "running": 120}]},
            "servers",
            "it has 120 of 128 episodes; all 16 leases are out",
        ),
        ({"run": {"phase": "eval"}}, "", "evaluation"),
        ({"history": []}, "", "the first batch is being made"),
    ],
)
def test_bottleneck(sections, stage, words):
    found = bottleneck(changed(**sections))
    assert found.stage == stage and words in found.sentence


def test_bottleneck_is_the_learner_where_nothing_is_waited_for():
    snapshot = synthetic_snapshot()
    for record in snapshot["history"]:
        record["seconds"] = {"wait": 0.1, "update": 4.0, "push": 0.3, "step": 4.4}
    assert bottleneck(Snapshot(snapshot)).sentence == (
        "the learner sets the pace, busy 91 % of the time: 14 groups are ready"
    )
    for record in snapshot["history"]:
        record["seconds"]["push"] = 3.0
    assert "pushing weights takes 42 %" in bottleneck(Snapshot(snapshot)).sentence


@pytest.mark.parametrize(
    ("actor", "word", "severity"),
    [
        ({}, "", "note"),
        ({"age_s": 4.2}, "silent 4.2 s", "bad"),
        ({"stats": {"turns": 900, "latency_p99": 9.0}}, "slow: p99 5× the others'", "warn"),
        ({"stats": {"turns": 100, "faults": {"tool.timeout": 40}}}, "faults in 40 % of turns", "warn"),
        ({"held": 8, "stats": {"tokens_per_s": 100.0}}, "5 % of the others' rate", "warn"),
        ({"held": 8, "stats": {"version": 30}}, "12 versions behind", "warn"),
        ({"held": 0, "stats": {"version": 30, "tokens_per_s": 0.0}}, "", "note"),
    ],
)
def test_a_sick_actor_is_named_with_what_ails_it(actor, word, severity):
    snapshot = synthetic_snapshot()
    snapshot["actors"][0] = {"id": "actor-0", "age_s": 0.1, **actor}
    s = Snapshot(snapshot)
    health = actor_health(s.actors[0], s)
    assert (health.word, health.severity) == (word, severity)
    assert (f"actor-0: {word}" if word else "all well") in fleet_sentence(s)[0]


@pytest.mark.parametrize(
    ("server", "word"),
    [
        ({"waiting": 500}, ""),
        ({"kv_usage": 0.95}, "KV cache 95 %"),
        ({"version": 38}, "4 versions behind"),
        ({"state": "unreachable", "error": "ConnectionError"}, "ConnectionError"),
        ({"state": "excluded"}, "excluded"),
    ],
)
def test_a_sick_server_is_named(server, word):
    snapshot = synthetic_snapshot()
    s = Snapshot({**snapshot, "servers": [snapshot["servers"][0] | server]})
    assert server_health(s.servers[0], s).word == word


def test_the_sick_come_first():
    snapshot = synthetic_snapshot()
    snapshot["actors"][1]["age_s"] = 8.0
    page = "\n".join(text_of(snapshot, 100, 24, "fleet"))
    assert page.index("actor-1 ") < page.index("actor-0 ") and "actor-1: silent 8.0 s" in page


def test_why_an_episode_failed():
    assert why({}) == "" and why({"metrics": {"em": 1.0}}) == "solved"
    failed = {"finish": "max_turns", "metrics": {"em": 0.0, "found": 0.5}}
    failed["tool_calls"] = [{"name": "", "fault": "malformed"}, {"name": "search", "fault": None}]
    assert why(failed) == "failed: cut: no turns left; faulty calls: call malformed; found 0.50"


def test_every_fault_of_a_tool_has_a_meaning():
    assert {f"tool.{kind}" for kind in Fault.__args__} <= FAULTS.keys()
    assert meaning("tool.malformed")[0] == "policy" and meaning("request.timeout")[0] == "server"
    assert meaning("unheard of")[1] == "counted by the actors"


def test_the_parts_of_a_step_add_up():
    before, record = synthetic_snapshot(2)["history"]
    parts = spans(record, before)
    whole = record["time_s"] - before["time_s"]
    assert sum(parts.values()) == pytest.approx(whole, abs=0.11) and parts["other"] > 0
    assert spans({}) == dict.fromkeys(parts, 0.0)


def test_figures_are_added_over_actors():
    s = Snapshot(synthetic_snapshot())
    assert s.tools[0]["calls"] == 19_600 and s.tools[0]["p50"] == pytest.approx(0.0021)
    assert s.faults == {"tool.malformed": 25, "tool.timeout": 6}
    assert s.servers_seen["http://127.0.0.1:8100"]["requests"] == 30_000
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
    before["run"]["message"], after["run"]["message"] = "no group for 45 s", "no group for 46 s"
    assert "no group" not in "\n".join(plain_lines(before, after))


def test_plain_lines_from_the_start_and_at_the_end():
    done = synthetic_snapshot()
    done["run"]["phase"] = "done"
    lines = plain_lines(None, done)
    assert sum("step " in line and "reward" in line for line in lines) == 42
    assert "eval Naive RAG: hotpot em 0.27" in "\n".join(lines) and "done" in lines[-1]
