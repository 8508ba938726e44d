"""The dashboard's state: keys and snapshots in, a picture out. It knows no terminal, so tests drive it directly."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from rich.text import Text

from . import theme
from .curves import curves_page
from .diagnosis import bottleneck
from .episode import episode_page, why
from .fleet import fleet_page
from .format import bar, clean, clock, compact, share
from .help import help_lines
from .learner_page import learner_page
from .model import Snapshot, dicts
from .overview import overview_page
from .tools import tools_page

MIN_WIDTH, MIN_HEIGHT = 72, 20

PAGES = ("overview", "curves", "fleet", "learner", "tools", "episode")

#: Newest episodes that were seen and can be gone back to.
_KEPT = 50
_SCROLL = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(10**6), "end": 10**6}


class Transport(Protocol):
    """What moves a replay; a live page has none."""

    def key(self, key: str) -> bool:
        """Whether the key was one of its own."""

    def label(self) -> str:
        """Where it stands and how fast it goes, in a few letters."""


class App:
    """leave: what the key q means to the caller. ``over``: the person left."""

    def __init__(self, leave: str = "leave", transport: Transport | None = None):
        self._leave_means = leave
        self._transport = transport
        self._snapshot: dict[str, Any] | None = None
        self._note = ""
        self._episodes: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._back = 0
        self._typed: str | None = None
        self._scroll = 0
        self._height = MIN_HEIGHT
        self.page = PAGES[0]
        self.query = ""
        self.paused = self.help = self.over = False
        #: The replay was moved: another snapshot is due at once.
        self.moved = False

    # ── in ───────────────────────────────────────────────────────────────────

    def observe(self, snapshot: dict[str, Any], note: str = "") -> None:
        """note: a warning, shown until another one comes. Ignored while the person holds the picture."""
        if self.paused:
            return
        self._snapshot, self._note = snapshot, note
        latest = Snapshot(snapshot).latest
        if latest and (not self._episodes or self._episodes[-1] != latest):
            self._episodes.append(latest)
            self._back += bool(self._back)  # who reads an earlier one goes on reading it

    def key(self, key: str) -> None:
        """key: a name as ``keys.read_keys`` gives them."""
        if self._typed is not None:
            self._type(key)
        elif key in ("q", "Q"):
            self.over = True
        elif self.help:
            self._scroll_by(key) or self._close_help()
        elif key in ("?", "h"):
            self.help, self._scroll = True, 0
        elif key == "/":
            self._typed = self.query
        elif key == "esc":
            self.query, self._scroll, self._back = "", 0, 0
        elif key in ("tab", "backtab") or (key.isdigit() and 1 <= int(key) <= len(PAGES)):
            self._turn(key)
        elif self._transport and self._transport.key(key):
            self.moved = True
        elif key in ("p", "P", " "):
            self.paused = not self.paused
        elif not self._scroll_by(key) and self.page == "episode" and key in ("left", "right"):
            self._back = max(0, min(self._back + (1 if key == "left" else -1), len(self._passing()) - 1))
            self._scroll = 0

    def forget_episodes(self) -> None:
        """The replay jumped: what was seen before does not lie before it."""
        self._episodes.clear()
        self._back = 0

    def _turn(self, key: str) -> None:
        by = {"tab": 1, "backtab": -1}.get(key)
        at = int(key) - 1 if by is None else (PAGES.index(self.page) + by) % len(PAGES)
        self.page, self._scroll = PAGES[at], 0

    def _scroll_by(self, key: str) -> bool:
        by = _SCROLL.get(key) or {"pgup": -1, "pgdn": 1}.get(key, 0) * max(1, self._height - 8)
        self._scroll = max(0, self._scroll + by)  # the next picture tells how far it goes
        return bool(by)

    def _close_help(self) -> None:
        self.help, self._scroll = False, 0

    def _type(self, key: str) -> None:
        typed = self._typed or ""
        if key in ("enter", "esc"):
            self._typed = None
            if key == "enter":
                self.query, self._scroll, self._back = typed.strip(), 0, 0
        elif key == "backspace":
            self._typed = typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typed = typed + key

    def _passing(self) -> list[dict[str, Any]]:
        """Episodes that the filter lets through, the newest first."""
        words = self.query.lower().split()
        return [e for e in reversed(self._episodes) if all(word in _searched(e) for word in words)]

    # ── out ──────────────────────────────────────────────────────────────────

    def lines(self, width: int, height: int) -> list[Text]:
        """``height`` lines of ``width`` cells."""
        s = Snapshot(self._snapshot)
        self._height = height
        limit = 0
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            notes = (
                bottleneck(s).sentence,
                f"the full page needs {MIN_WIDTH}×{MIN_HEIGHT} or more: make the window larger",
            )
            body = [theme.row(note) for note in notes]
        elif self.help:
            text = help_lines(width - 4, self._leave_means, self._transport is not None)
            shown, limit = theme.scrolled(text, self._scroll, height - 4)
            body = theme.frame("help", shown, width, height - 2)
        else:
            body, limit = self._body(s, width, height - 2)
        self._scroll = min(self._scroll, limit)
        body = body[: max(0, height - 2)] + [Text(end="") for _ in range(height - 2 - len(body))]
        lines = [self._header(s, width), *body, self._footer(s, width)]
        return [theme.fit(line, width) for line in lines[: max(0, height)]]

    def _body(self, s: Snapshot, width: int, height: int) -> tuple[list[Text], int]:
        """The page's lines, and how far it can be scrolled."""
        if self.page == "overview":
            return overview_page(s, width, height), 0
        if self.page == "curves":
            return curves_page(s, width, height, self._scroll)
        if self.page == "fleet":
            return fleet_page(s, width, height, self.query, self._scroll)
        if self.page == "learner":
            return learner_page(s, width, height), 0
        if self.page == "tools":
            return tools_page(s, width, height, self.query, self._scroll)
        passing = self._passing()
        if not passing and self.query:
            empty = [Text("no episode seen so far passes the filter: Esc takes it away", style=theme.WARN)]
            return theme.frame("episode", empty, width, height), 0
        self._back = min(self._back, max(0, len(passing) - 1))
        episode = passing[self._back] if passing else {}
        place = f"{self._back} back" if self._back else ""
        return episode_page(episode, width, height, self._scroll, place)

    def _header(self, s: Snapshot, width: int) -> Text:
        step, steps = s.run.get("step"), s.run.get("steps")
        done = step / steps if isinstance(step, (int, float)) and isinstance(steps, (int, float)) and steps else None
        line = theme.row(
            (" ROLLWAY ", f"reverse {theme.TITLE}"),
            " ",
            (clean(s.run.get("id") or "–"), theme.BOLD),
            (f"  {bar(done, max(6, width // 10))} ", theme.ACCENT),
            (f"step {compact(step)}/{compact(steps)} ", theme.BOLD),
            (f" {share(done)}  {clock(s.elapsed)} elapsed  {clock(s.eta)} left", theme.DIM),
        )
        version = f"version {compact(s.run.get('version'))}"
        model = clean(s.run.get("model") or "–").rstrip("/").rsplit("/", 1)[-1]
        for facts in (f"{model} · {version} ", f"{version} ", f"v{compact(s.run.get('version'))} "):
            gap = width - line.cell_len - len(facts)
            if gap > 1:
                return theme.row(line, " " * gap, (facts, theme.DIM))
        return line

    def _footer(self, s: Snapshot, width: int) -> Text:
        if self._typed is not None:
            hint = "   words that a row must have · Enter · Esc"
            return theme.row((" filter ", theme.ACCENT), self._typed, ("▏", theme.ACCENT), (hint, theme.DIM))
        note, style = self._message(s)
        # What a person has to know goes before what they can look up.
        for keys in (self._tabs(named=True), *([self._tabs(named=False)] if style != theme.DIM else [])):
            if (gap := width - keys.cell_len - len(note) - 1) > 0:
                return theme.row(keys, " " * gap, (note, style))
        return self._tabs(named=True) if style == theme.DIM else theme.row((f" {note}", style))

    def _tabs(self, named: bool) -> Text:
        here = "help" if self.help else self.page
        tabs = [
            (f" {key} {name} " if named or name == here else f" {key} ", "reverse" if name == here else theme.DIM)
            for key, name in [*enumerate(PAGES, 1), ("?", "help")]
        ]
        return theme.row(*tabs)

    def _message(self, s: Snapshot) -> tuple[str, str]:
        if self.paused:
            return "paused: p goes on", theme.WARN
        if self._note:
            return self._note, theme.WARN
        if self.query:
            return f"filter: {self.query}", theme.ACCENT
        if self._transport:
            return self._transport.label(), theme.ACCENT
        return f"q {self._leave_means}  p pause  / filter", theme.DIM


def _searched(episode: dict[str, Any]) -> str:
    """What the filter looks at: names, outcome, faults, and all that was said."""
    text = " ".join(str(segment.get("text")) for segment in dicts(episode.get("segments")))
    return f"{episode.get('dataset')} {episode.get('task_id')} {episode.get('finish')} {why(episode)} {text}".lower()
