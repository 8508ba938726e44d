"""The trajectory browser: filters, pictures, and the real program on a pseudo-terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from learner.browse import main
from learner.browse.browser import Browser
from learner.browse.filters import FilterError, parse
from learner.browse.library import Library
from learner.browse.listing import plain
from learner.dashboard.keys import named
from learner.run.folder import RunFolder, RunFolderError
from tests.synthetic_run import GROUP_SIZE, synthetic_run
from tests.terminal import Terminal

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("runs") / "plain", steps=10)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return synthetic_run(tmp_path_factory.mktemp("runs") / "hostile", steps=3, hostile=True)


@pytest.fixture
def browser(folder):
    return Browser(Library.read(folder))


def screen(browser, width=100, height=30):
    return [line.plain.rstrip() for line in browser.picture(width, height)]


def press(browser, *keys):
    for key in keys:
        browser.key(key)
    return "\n".join(screen(browser))


# ── filters ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 41),
        ("reward>0.5", 21),
        ("reward<=0.1", 20),
        ("em=1 dataset:hotpot", 11),
        ("dataset:WIKI", 20),
        ("fault:timeout", 10),
        ("faults>0", 10),
        ("faults=0 em=0", 10),
        ("step=3", 4),
        ("version=3", 8),
        ("version>=9", 5),
        ("length>1000", 0),
        ("sampled>1", 41),
        ("turns=2", 41),
        ("task:0007", 4),
        ("kind:eval", 1),
        ("finish:max_turns", 10),
        ("tool:search", 41),
        ("group:lease-3", 4),
        ("know", 20),
        ("metric_f1<1", 20),
        ("silver harbour em=1", 10),
    ],
)
def test_filter(folder, query, count):
    episodes = Library.read(folder).episodes
    assert sum(map(parse(query), episodes)) == count


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("rewrad>1", "did you mean reward"),
        ("reward>much", "is a number"),
        ("task>3", "is text; write task:3"),
        ("zzz=1", "there are reward"),
    ],
)
def test_a_filter_that_makes_no_sense_says_what_does(query, words):
    with pytest.raises(FilterError, match=words):
        parse(query)


# ── pictures ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("view", [[], ["enter"], ["enter", "tab"], ["s"], ["?"], ["/", "x"]])
@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 8), (39, 30), (12, 3)])
@pytest.mark.parametrize("which", ["folder", "hostile"])
def test_a_picture_has_the_size_of_the_screen(which, size, view, request):
    browser = Browser(Library.read(request.getfixturevalue(which)))
    press(browser, *view)
    lines = browser.picture(*size)
    assert len(lines) == size[1]
    assert all(cell_len(line.plain) == size[0] for line in lines)
    text = "".join(line.plain for line in lines)
    assert "\x1b" not in text and "\u202e" not in text


def test_list_moves_and_orders(browser):
    assert "1 of 41 · newest" in screen(browser)[0]
    assert press(browser, "down", "j").count("▌") == 1 and "3 of 41" in screen(browser)[0]
    assert "41 of 41" in press(browser, "end") and "1 of 41" in press(browser, "home")
    assert "27 of 41" in press(browser, "pgdn")  # 26 on: one line less than the list has
    at = browser.episode
    assert "lowest reward" in press(browser, "o") and browser.episode is at
    press(browser, "home")
    assert browser.episode["reward"] == pytest.approx(0.1)
    press(browser, "o", "home")
    assert browser.episode["reward"] == pytest.approx(1.1)


def test_filter_is_typed_mended_and_given_up(browser):
    shown = press(browser, "/", *"rewrad>1", "enter")
    assert "did you mean reward" in shown and len(browser.found) == 41
    press(browser, *["backspace"] * 8, *"fault:timeout", "enter")
    assert len(browser.found) == 10 and "fault:timeout" in screen(browser)[0]
    press(browser, "/", *"zz", "esc")
    assert browser.query == "fault:timeout"
    assert "no episode passes" in press(browser, "/", *" xyzzy", "enter")
    assert "no episode passes" in press(browser, "enter", "s", "tab", "right")


def test_an_episode_is_read(browser):
    shown = press(browser, "/", *"task:0007", "enter", "enter")
    assert "When was the star" in shown or "Which of Silver" in shown
    for words in (
        "look it up",
        '→ search(query="Blind Castle")',
        "+0.10",
        "Blind Castle: a film",
        "v5",
        "v6",
        "reward",
    ):
        assert words in shown, words
    before = browser.episode
    press(browser, "right")
    assert browser.episode is not before and browser.view == "story"


def test_tokens_show_mask_version_logprob_and_advantage(browser):
    press(browser, "/", *"step=7 em=1", "enter", "enter", "tab")
    episode = browser.episode
    lines = screen(browser, height=2000)[2:-1]
    rows = [line for line in lines if line.strip()]
    assert len(rows) == episode["tokens"]
    assert sum("●" in row for row in rows) == episode["sampled"]
    first = next(row for row in rows if "●" in row).split()
    assert first[3] == "v5" and float(first[4].replace("−", "-")) == pytest.approx(episode["logprobs"][0], abs=5e-4)
    assert first[6] == "1.35"  # e^0.3: what the synthetic learner's log π_prox is above log μ
    assert float(first[7].replace("−", "-")) == pytest.approx(episode["advantages"][0], abs=5e-3)
    assert rows[-1].split()[-1] == "+1.00"
    assert "no tokenizer at hand" in screen(browser, height=2000)[1] or browser.library.has_tokenizer
    press(browser, "m")
    assert sum("·" in row for row in screen(browser, height=2000)[2:-1]) == 0


def test_words_of_tokens_come_from_the_runs_own_tokenizer(folder):
    library = Library.read(folder)  # model.path is the built-in policy
    words = [library.token(i) for i in range(300)]
    assert library.has_tokenizer and not any(word.startswith("#") and word[1:].isdigit() for word in words)
    assert "<|im_start|>" in words


def test_a_group_stands_side_by_side(browser):
    shown = press(browser, "/", *"step=7", "enter", "s")
    assert "group of 4: members 1 to 2" in shown and shown.count("adv ") == 2
    assert "members 3 to 4" in press(browser, "right", "right", "right")
    assert (
        "group of 4" in "\n".join(screen(browser, 200, 40)) and "\n".join(screen(browser, 200, 40)).count("adv ") == 4
    )
    assert press(browser, "q").startswith(" plain") and browser.view == "list" and not browser.over
    press(browser, "q")
    assert browser.over


def test_a_run_that_goes_on_is_read_again(folder, tmp_path):
    path = synthetic_run(tmp_path / "run", steps=2)
    browser = Browser(Library.read(path))
    more = RunFolder(path)
    more.log_episodes([{**browser.library.episodes[0], "step": 99}])
    assert f"{2 * GROUP_SIZE + 2} episodes read" in press(browser, "r")


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"\x1b[A\x1b[Bq", ["up", "down", "q"]),
        (b"\x1b", ["esc"]),
        (b"\x1b[5~\x1b[1;5C\t", ["pgup", "tab"]),
        ("ü/\r".encode(), ["ü", "/", "enter"]),
        (b"\xff\x7f", ["", "backspace"]),
    ],
)
def test_keys(data, keys):
    assert list(named(data)) == keys


# ── the program ──────────────────────────────────────────────────────────────


def test_what_cannot_be_browsed_is_one_clear_line(tmp_path, capsys):
    assert main([]) == 2 and main([str(tmp_path)]) == 1 and main([str(tmp_path), "rewrad>1"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(line.startswith("error: ") for line in errors)
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(RunFolderError, match="no recorded episodes"):
        Library.read(tmp_path)


def test_in_a_pipe_it_is_a_list(hostile):
    command = [sys.executable, "run.py", "--role", "browse", str(hostile), "em=1", "kind:train"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 1 + 6, done.stderr
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert lines == list(plain(e for e in Library.read(hostile).episodes if e["reward"] > 1 and e["kind"] == "train"))


@pytest.fixture
def terminal(folder):
    opened = []

    def open_(**options):
        opened.append(Terminal("run.py", "--role", "browse", str(folder), **options))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_keys_resize_and_the_terminal_given_back(terminal):
    t = terminal()
    t.wait_for("1 of 41")
    t.wait_for("leave")  # the last line of the first page
    assert all(len(line) == 80 for line in t.screen.display) and "leave" in t.screen.display[23]
    t.send(b"\x1b[B")
    t.wait_for("2 of 41")
    t.send(b"\r")
    t.wait_for("look it up")
    t.send(b"\t")
    t.wait_for("log μ")
    t.resize(120, 40)
    t.wait_for("sampled only")
    t.wait_for("help", line=39)
    t.send(b"s")
    t.wait_for("members 1 to 3")
    t.send(b"?")
    t.wait_for("any key")
    t.send(b"xqq")
    assert t.end() == 0 and t.given_back()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back(terminal, number, code):
    t = terminal()
    t.wait_for("1 of 41")
    t.process.send_signal(number)
    assert t.end() == code and t.given_back()


def test_without_colour(terminal):
    t = terminal(NO_COLOR="1")
    t.wait_for("1 of 41")
    assert b"38;5" not in t.raw and b"38;2" not in t.raw
    t.send(b"q")
    assert t.end() == 0
