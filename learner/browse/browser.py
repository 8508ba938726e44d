"""The browser's state: keys in, a picture out. It knows no terminal, so tests drive it directly."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from learner.browse.filters import FilterError, parse
from learner.browse.library import Library
from learner.browse.listing import HEADINGS, ORDERS, line
from learner.browse.reading import TOKEN_HEADINGS, group_columns, headline, story, token_lines
from learner.dashboard import theme
from learner.dashboard.format import clean

Episode = dict[str, Any]

#: Narrowest column of a group that can be read.
_COLUMN = 36

#: Smallest screen that is drawn on.
MIN_WIDTH, MIN_HEIGHT = 40, 8

HELP = """
↑ ↓ j k        one line                 Enter   read the episode
PgUp PgDn      one page (also space)    Tab     text or tokens
Home End       first, last              s       its group side by side
← → p n        the episode before, after; in a group: its other members
m              in the tokens: all, or only those that the policy sampled
o              order: newest, lowest reward, highest reward, longest
r              read the run folder again: a run may be going on
Esc, q         back; q in the list leaves

/              filter; all words must hold, an empty one keeps everything
               reward<0.5  em=1  f1>0.5  metric_NAME>0  step=40  version>=10
               length>200  sampled>50  turns>3  faults>0
               task:0377  dataset:hotpot  kind:eval  finish:length  group:7
               fault:timeout  tool:search  any other word: in the text
""".strip("\n").splitlines()


class Browser:
    """``key`` takes the name of a key, ``picture`` draws. ``over``: the person left."""

    def __init__(self, library: Library, query: str = ""):
        self.library = library
        self.query = query
        self.over = False
        self.note = ""
        self.view = "list"
        self._typed: str | None = None
        self._before_help = "list"
        self._order = 0
        self._cursor = self._top = self._scroll = self._shift = 0
        self._sampled_only = False
        self._page = 10
        self._lines = 0
        self.found: list[Episode] = []
        self._select()

    @property
    def episode(self) -> Episode | None:
        return self.found[self._cursor] if self.found else None

    # ── keys ─────────────────────────────────────────────────────────────────

    def key(self, key: str) -> None:
        """``key``: a character, or one of up, down, left, right, pgup, pgdn, home, end, enter, tab, esc, backspace."""
        self.note = ""
        if self._typed is not None:
            self._type(key)
        elif self.view == "help":
            self.view = self._before_help
        elif key in ("?", "h"):
            self._before_help, self.view = self.view, "help"
        elif key == "/":
            self._typed = self.query
        elif key in ("q", "esc"):
            self._back(key)
        elif not self._move(key):
            self._act(key)

    def _type(self, key: str) -> None:
        typed = self._typed or ""
        if key == "esc":
            self._typed = None
        elif key == "backspace":
            self._typed = typed[:-1]
        elif key == "enter":
            try:
                parse(typed)
            except FilterError as error:
                self.note = str(error)
                return
            self.query, self._typed, self.view = typed.strip(), None, "list"
            self._select()
        elif len(key) == 1 and key.isprintable():
            self._typed = typed + key

    def _back(self, key: str) -> None:
        if self.view == "list":
            self.over = key == "q"
        else:
            self.view = "list"

    def _move(self, key: str) -> bool:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -self._page, "pgdn": self._page, " ": self._page}
        ends = {"home": -(10**9), "end": 10**9}
        by = steps.get(key) or ends.get(key)
        if by is None:
            return False
        if self.view == "list":
            self._go(by)
        else:
            self._scroll = max(0, min(self._scroll + by, self._lines - self._page))
        return True

    def _act(self, key: str) -> None:
        if key == "o":
            self._order = (self._order + 1) % len(ORDERS)
            self._select()
        elif key == "r":
            self.library = Library.read(self.library.path)
            self._select()
            self.note = f"{len(self.library.episodes)} episodes read"
        elif self.episode is None:
            return
        elif key == "enter" and self.view == "list":
            self._open("story")
        elif key == "tab":
            self._open("tokens" if self.view == "story" else "story")
        elif key == "s":
            self._open("group")
        elif key == "m":
            self._sampled_only = not self._sampled_only
            self._scroll = 0
        elif key in ("left", "right", "p", "n"):
            by = 1 if key in ("right", "n") else -1
            if self.view == "group":
                self._shift = max(0, min(self._shift + by, len(self.library.group(self.episode)) - 1))
            else:
                self._go(by)
                self._scroll = 0

    def _open(self, view: str) -> None:
        self.view, self._scroll, self._shift = view, 0, 0

    def _go(self, by: int) -> None:
        self._cursor = max(0, min(self._cursor + by, len(self.found) - 1))

    def _select(self) -> None:
        """Filter and order anew; the cursor stays on its episode where that is still there."""
        at, keep = self.episode, parse(self.query)
        key, reverse = list(ORDERS.values())[self._order]
        self.found = sorted((e for e in self.library.episodes if keep(e)), key=key, reverse=reverse)
        self._cursor = next((i for i, e in enumerate(self.found) if e is at), 0)
        self._top = 0

    # ── picture ──────────────────────────────────────────────────────────────

    def picture(self, width: int, height: int) -> list[Text]:
        """Exactly ``height`` lines of ``width`` cells."""
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            small = [Text(f"at least {MIN_WIDTH}×{MIN_HEIGHT}")]
            return [theme.fit(part, width) for part in (small + [Text()] * height)[:height]]
        self._page = height - 4
        head, body = self._body(width)
        self._lines = len(body)
        body = body[self._scroll :] if self.view not in ("list", "help") else body
        lines = [self._title(width), head, *(body + [Text()] * height)[: height - 3], self._footer()]
        return [theme.fit(part.copy(), width) for part in lines]

    def _body(self, width: int) -> tuple[Text, list[Text]]:
        if self.view == "help":
            return Text("keys", style=theme.TITLE), [Text(part) for part in HELP]
        if self.view == "list" or self.episode is None:
            return Text(f"  {HEADINGS}", style=theme.DIM), self._list()
        if self.view == "tokens":
            note = "" if self.library.has_tokenizer else "   no tokenizer at hand: ids for words"
            head = theme.row((TOKEN_HEADINGS, theme.DIM), (note, theme.WARN))
            return head, token_lines(self.episode, self.library, self._sampled_only)
        if self.view == "group":
            return self._group(width)
        return headline(self.episode), story(self.episode, width)

    def _list(self) -> list[Text]:
        if not self.found:
            return [Text("  no episode passes the filter: / changes it", style=theme.WARN)]
        room = self._page + 1
        self._top = min(max(self._top, self._cursor - room + 1), self._cursor)
        return [
            theme.row(("▌ ", theme.ACCENT) if i == self._cursor else "  ", _marked(line(e), i == self._cursor))
            for i, e in enumerate(self.found[self._top : self._top + room], start=self._top)
        ]

    def _group(self, width: int) -> tuple[Text, list[Text]]:
        assert self.episode is not None
        members = self.library.group(self.episode)
        fit = min(len(members), max(1, width // _COLUMN))
        self._shift = min(self._shift, len(members) - fit)
        shown = members[self._shift : self._shift + fit]
        last = self._shift + fit
        head = (
            f"group of {len(members)}: members {self._shift + 1} to {last}"
            if fit < len(members)
            else f"group of {len(members)}"
        )
        return Text(head, style=theme.DIM), group_columns(shown, width)

    def _title(self, width: int) -> Text:
        place = f"{self._cursor + 1} of {len(self.found)}" if self.found else "none"
        order = list(ORDERS)[self._order]
        shown = f"{place} · {order}" + (f" · {self.query}" if self.query else "")
        name = clean(self.library.path.resolve().name)
        if self.view in ("story", "tokens", "group") and self.episode is not None:
            shown = f"{place} · {self.view} · {clean(self.episode.get('task_id', ''))}"
        return theme.row((f" {name} ", theme.TITLE), (shown, theme.DIM))

    def _footer(self) -> Text:
        if self._typed is not None:
            warn = f"   {self.note}" if self.note else ""
            return theme.row((" filter ", theme.ACCENT), self._typed, ("▏", theme.ACCENT), (warn, theme.BAD))
        keys = {
            "list": (("Enter", "read"), ("s", "group"), ("/", "filter"), ("o", "order"), ("?", "help"), ("q", "leave")),
            "help": (("any key", "back"),),
            "story": (("Tab", "tokens"), ("s", "group"), ("← →", "other episodes"), ("q", "back"), ("?", "help")),
            "tokens": (("Tab", "text"), ("m", "sampled only"), ("← →", "other episodes"), ("q", "back"), ("?", "help")),
            "group": (("← →", "other members"), ("Tab", "text"), ("q", "back"), ("?", "help")),
        }[self.view]
        parts = [part for key, means in keys for part in ((f" {key} ", theme.ACCENT), (f"{means} ", theme.DIM))]
        return theme.row(*parts, (f"  {self.note}", theme.WARN))


def _marked(text: Text, here: bool) -> Text:
    if here:
        text.stylize("bold")
    return text
