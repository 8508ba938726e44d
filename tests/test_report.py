"""The report: figures, the page, hostile text, and a real browser that opens it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learner.report import main, read_run, render
from learner.report.charts import health, learning
from learner.report.command import unique_names
from learner.report.figures import smooth, thin, wilson
from learner.report.stories import examples, succeeded
from learner.report.tables import config_rows, episode_check, flatten, score_rows, tiles
from learner.report.timeline import bars, phases, table, verdict
from learner.run.folder import RunFolder, RunFolderError
from tests.chromium import CHROMIUM, chromium
from tests.synthetic_run import GROUP_SIZE, synthetic_run

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("runs") / "plain", steps=60)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("runs") / "hostile", steps=6, hostile=True, config={"staleness": 1})


# ── figures ──────────────────────────────────────────────────────────────────


def test_wilson_is_the_published_interval():
    # Wilson (1927) as in Newcombe 1998, table I: 81/263 → 0.2553 to 0.3662; 0/20 → 0 to 0.1611; 15/148 → 0.0624 to 0.1605.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0.5, 0) == (0.0, 1.0)


def test_thinning_keeps_every_spike_and_the_ends():
    points = [(float(i), 0.0) for i in range(10_000)]
    points[7_777] = (7_777.0, 9.0)
    points[3_333] = (3_333.0, -9.0)
    kept = thin(points)
    assert len(kept) <= 482 and kept[-1] == points[-1] and kept == sorted(kept)
    assert {(7_777.0, 9.0), (3_333.0, -9.0)} <= set(kept)
    assert thin(points[:5]) == points[:5]


def test_smoothing_is_a_centred_mean_that_keeps_a_line_a_line():
    line = [(float(i), 2.0 * i) for i in range(200)]
    assert np.allclose(smooth(line), line)
    assert smooth([(0.0, 1.0), (1.0, 5.0)]) == [(0.0, 1.0), (1.0, 5.0)]


def test_time_between_steps_is_evaluation_and_checkpoints():
    steps = [
        {"step": 1, "time_s": 10.0, "seconds": {"wait": 1.0, "update": 2.0, "push": 0.5, "step": 4.0}},
        {"step": 2, "time_s": 20.0, "seconds": {"wait": 3.0, "update": 2.0, "push": 0.5, "step": 6.0}, "optimizer_s": 1.0},
    ]  # fmt: skip
    assert [row["between"] for row in phases(steps)] == [0.0, 4.0]
    shares = {row.name: row.share for row in table(steps)}
    assert shares["wait"] == pytest.approx(4 / 13) and shares["between"] == pytest.approx(4 / 13)
    assert shares["optimizer"] == pytest.approx(1 / 13)
    assert sum(row.share for row in table(steps) if not row.part) == pytest.approx(1)
    columns, size = bars(steps * 100)
    assert size == 4 and len(columns) == 50 and columns[0]["wait"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"wait": 9, "update": 1}, "Generation limited"),
        ({"wait": 1, "update": 9}, "learner set the pace"),
        ({"wait": 1, "update": 1, "push": 2}, "Weight pushes took"),
        ({"wait": 5, "update": 5}, "Balanced"),
    ],
)
def test_what_limited_the_run_is_said(seconds, words):
    assert words in verdict([{"step": 1, "seconds": seconds}])


def test_no_step_is_no_error():
    assert verdict([]) == "No step was finished." and table([]) == []


# ── a run folder ─────────────────────────────────────────────────────────────


def test_ledger_and_records_agree(folder):
    run = read_run(folder)
    assert run.audit["consumed"] == 120 and run.audit["lost"] == 0
    assert run.staleness == {0: 61, 1: 59}
    assert len(run.episodes) == 60 * GROUP_SIZE + 1
    assert "= 120 groups of 4 in the ledger" in episode_check(run)
    assert len(run.steps) == 60 and len(run.evals) == 12 and len(run.baselines) == 3


def test_a_unit_that_vanished_is_seen_as_lost(tmp_path):
    import sqlite3

    path = synthetic_run(tmp_path / "run", steps=3)
    with sqlite3.connect(path / "ledger.sqlite") as db:
        db.execute("DELETE FROM units WHERE seq = 2")
    run = read_run(path)
    assert run.audit["lost"] == 1
    assert next(t for t in tiles(run) if t.label == "ledger").tone == "bad"
    assert "the ledger 20" in episode_check(run)


def test_a_step_written_twice_counts_once(tmp_path):
    path = synthetic_run(tmp_path / "run", steps=3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "reward": 7.0}) + "\n")
    assert [r["reward"] for r in read_run(path).steps][1] == 7.0
    assert len(read_run(path).steps) == 3


def test_what_is_no_run_is_one_clear_line(tmp_path, capsys):
    with pytest.raises(RunFolderError, match="holds no run"):
        read_run(tmp_path)
    assert main([str(tmp_path)]) == 1 and main([]) == 2 and main(["a", "out=b", "out=c"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(line.startswith("error: ") for line in errors)
    path = synthetic_run(tmp_path / "run", steps=2)
    (path / "ledger.sqlite").write_text("no database")
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_run(path)


def test_a_run_that_has_just_begun_has_a_report(tmp_path):
    from configs.schema import Config

    with RunFolder.open(Config(run={"dir": tmp_path / "new"}, log={"trackers": []})):
        pass
    page = render([read_run(tmp_path / "new")])
    for words in ("unfinished", "No step was finished", "No evaluation was recorded", "recorded no episodes"):
        assert words in page
    assert read_run(tmp_path / "new").environment["packages"]["numpy"] == np.__version__


# ── the page ─────────────────────────────────────────────────────────────────


def test_it_says_what_happened(folder):
    page = html.unescape(render([read_run(folder)]))
    for words in (
        "plain", "finished", "exact match, musique", "Naive RAG", "120 groups trained on, none twice", "Policy entropy",
        "When was the star of Blind Castle born?", "search(query=\"Blind Castle\")", "search: timeout", "group_size",
        "lost: must be 0", "transformers",
    ):  # fmt: skip
        assert words in page, words


def test_it_loads_nothing(folder):
    page = render([read_run(folder)])
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page) and "@import" not in page and "url(" not in page
    assert "default-src 'none'" in html.unescape(page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script and "fetch" not in script[1] and "innerHTML" not in script[1]


def test_hostile_text_stays_text(hostile):
    page = render([read_run(hostile)])
    assert page.count("<script") == 2 and "<img" not in page
    assert html.escape("<script>alert(1)</script>", quote=False) in page
    assert "\x1b" not in page and "\u202e" not in page and "{{ 7*7 }}" in page


def test_successes_and_failures(folder):
    episodes = read_run(folder).episodes
    good, bad = examples(episodes, success=True), examples(episodes, success=False)
    assert len(good) == len(bad) == 4
    assert {"hotpot", "wiki2"} == {story.facts.split(" · ")[0] for story in good[:2]}
    assert all(story.faults for story in bad) and not any(story.faults for story in good)
    first = good[0]
    assert [line.kind for line in first.lines] == ["thought", "call", "response", "answer"]
    assert first.lines[1].reward == pytest.approx(0.1) and first.lines[3].reward == pytest.approx(1.0)
    assert first.lines[0].who == "policy v58" and first.lines[3].who == "policy v59"
    assert succeeded({"metrics": {"em": 0.0}, "reward": 5}) is False and succeeded({"reward": 0.9}) is True


def test_gains_beyond_the_intervals_are_marked(folder):
    rows = score_rows([read_run(folder)], ["Naive RAG"])
    assert [(row.dataset, row.tone) for row in rows] == [("hotpot", "good"), ("wiki2", "good"), ("musique", "good")]
    assert rows[0].baselines == ["0.270"]


def test_several_runs_are_compared(folder, hostile, tmp_path):
    runs = [read_run(folder, "one"), read_run(hostile, "two")]
    differs, same = config_rows(runs)
    assert {row.name: row.cells for row in differs}["staleness"] == ["2", "1"]
    assert "learner.groups" in {row.name for row in same}
    reward = next(chart for chart in learning(runs) if chart["id"] == "reward")
    assert [s["name"] for s in reward["series"]] == ["one", "two"]
    assert {chart["id"] for chart in learning(runs)} >= {"em-hotpot", "em-wiki2", "em-musique"}
    assert main([str(folder), str(hostile), f"out={tmp_path / 'both.html'}"]) == 0
    page = (tmp_path / "both.html").read_text()
    assert "plain and hostile" in page and 'class="mono differs"' in page


def test_charts_are_finite_json(folder):
    runs = [read_run(folder)]
    charts = [*learning(runs), *health(runs)]
    assert json.loads(json.dumps(charts, allow_nan=False)) == charts
    assert len({chart["id"] for chart in charts}) == len(charts)


def test_names_tell_runs_apart():
    paths = [Path("/a/x/run"), Path("/a/y/run"), Path("/a/y/run")]
    assert unique_names(paths) == ["x/run", "y/run", "y/run (2)"]
    assert unique_names([Path("/a/x"), Path("/b/y")]) == ["x", "y"]


def test_flatten():
    assert flatten({"a": {"b": [1, 2], "c": None}, "d": True}) == {"a.b": "1, 2", "a.c": "–", "d": "true"}


def test_the_command(folder, tmp_path):
    target = tmp_path / "report.html"
    command = [sys.executable, "run.py", "--role", "report", str(folder), f"out={target}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and str(target) in done.stdout, done.stderr
    assert target.read_text().startswith("<!doctype html>")
    dry = subprocess.run(
        [*command[:4], "no/such/run", "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert dry.returncode == 0 and "no/such/run/report.html" in dry.stdout


def test_reading_needs_no_torch():
    code = "import sys, learner.report, learner.report.page; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ran.stdout.strip() == "False", ran.stderr


# ── a real browser ───────────────────────────────────────────────────────────

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: `make browser` installs Debian's")

#: Elements that stick out of the page to the right.
_OVERFLOWING = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && !e.closest('svg')
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className)"""

_CHARTS = """[...document.querySelectorAll('.chart')].map(c => ({id: c.id, width: c.querySelector('svg')?.clientWidth,
    room: c.clientWidth, marks: c.querySelectorAll('svg .line, svg .fill').length,
    bad: /NaN|Infinity|undefined/.test(c.innerHTML)}))"""


@needs_chromium
@pytest.mark.parametrize("which", ["folder", "hostile"])
async def test_the_page_in_chromium(which, request, tmp_path):
    path = request.getfixturevalue(which)
    target = tmp_path / "report.html"
    assert main([str(path), f"out={target}"]) == 0
    async with chromium(tmp_path / "profile") as page:
        await page.open(target.as_uri())
        charts = await page.evaluate(_CHARTS)
        assert len(charts) > 15 and all(c["marks"] and not c["bad"] for c in charts), charts
        # A phone: everything is within the page, text at its size, and the charts were drawn anew.
        await page.resize(390, 844)
        await page.settle()
        charts = await page.evaluate(_CHARTS)
        assert all(c["width"] <= c["room"] <= 390 for c in charts), charts
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        assert await page.evaluate(_OVERFLOWING) == []
        # A finger on a curve reads its values.
        await page.evaluate("document.querySelector('#chart-reward').scrollIntoView({block: 'center'})")
        await page.evaluate("""(() => { const svg = document.querySelector('#chart-reward svg'), box = svg.getBoundingClientRect();
            svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 200, clientY: box.top + 50})); })()""")
        tip = await page.evaluate("document.querySelector('#chart-reward .tip.on').textContent")
        assert re.match(r"step \d+\w+?0?\.\d", tip), tip
        # No alert, no script of the run's, no request but the file itself, nothing on the console.
        assert page.complaints == [] and page.requests == [target.as_uri()]
        assert await page.evaluate("document.querySelectorAll('img, iframe, object').length") == 0


@needs_chromium
async def test_a_script_that_slipped_in_would_not_run(folder, tmp_path):
    """The second line of defence: the page's own policy."""
    target = tmp_path / "report.html"
    page_text = render([read_run(folder)]).replace("<main>", "<main><script>document.title = 'taken'</script>")
    target.write_text(page_text)
    async with chromium(tmp_path / "profile") as page:
        await page.open(target.as_uri())
        assert "taken" not in await page.evaluate("document.title")
        assert any("Content Security Policy" in text for text in page.complaints)


@needs_chromium
async def test_two_runs_in_chromium_in_the_dark(folder, hostile, tmp_path):
    target = tmp_path / "compare.html"
    assert main([str(folder), str(hostile), f"out={target}"]) == 0
    async with chromium(tmp_path / "profile") as page:
        await page.open(target.as_uri(), dark=True)
        charts = await page.evaluate(_CHARTS)
        assert all(c["marks"] and not c["bad"] for c in charts), charts
        assert page.complaints == []
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", dark))) < 60


def test_make_browser_never_fails():
    """Where there is neither a browser nor apt, it says so."""
    make, sh = shutil.which("make"), shutil.which("sh")
    assert make and sh
    empty = {"PATH": "/nonexistent"}
    done = subprocess.run(
        [make, f"SHELL={sh}", "browser"], cwd=ROOT, env=empty, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "will be skipped" in done.stdout, done.stderr
