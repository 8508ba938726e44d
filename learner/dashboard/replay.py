"""``python run.py --role dashboard RUN``: a finished, dead or running run played back from its folder."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

from rich.console import Console

from learner.run.folder import RunFolderError

from .app import App
from .client import exit_on_signals
from .format import clock
from .live import REFRESH_S, PlainView, View, open_view
from .recording import Recording

_USAGE = "python run.py --role dashboard RUN"

#: Seconds of the run in a second, from which + and − choose; where it begins.
SPEEDS, FIRST_SPEED = (1, 2, 5, 10, 20, 50, 100, 200), 3

#: How long a note about the recording is shown, seconds.
_NOTE_S = 6.0

#: The part of the whole by which ← and → move.
_SEEK = 0.02


class Player:
    """A position in a recording, moved by keys and by time."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.at = 0.0
        self.paused = False
        self._speed = FIRST_SPEED
        self.jumped = False
        self._watched_s = 0.0

    @property
    def index(self) -> int:
        """The newest frame at this position."""
        return max(0, bisect_right(self.recording.times, self.at) - 1)

    def snapshot(self) -> dict[str, Any]:
        return self.recording.snapshot(self.index)

    def advance(self, elapsed_s: float) -> None:
        """``elapsed_s`` seconds of the person's time pass. It stops at the end."""
        self._watched_s += elapsed_s
        if not self.paused:
            self.at = min(self.at + elapsed_s * SPEEDS[self._speed], self.recording.seconds)
            self.paused = self.at >= self.recording.seconds

    def key(self, key: str) -> bool:
        if key in ("+", "=", "-", "_"):
            by = 1 if key in ("+", "=") else -1
            self._speed = max(0, min(self._speed + by, len(SPEEDS) - 1))
        elif key in ("p", "P", " "):
            self.paused = not self.paused
            if not self.paused and self.at >= self.recording.seconds:
                self.at = 0.0
        elif key in ("left", "right"):
            step = max(self.recording.seconds * _SEEK, 1.0)
            self._jump(self.at + (step if key == "right" else -step))
        elif key in (",", "."):
            near = self.index + (1 if key == "." else -1)
            self._jump(self.recording.times[max(0, min(near, len(self.recording.times) - 1))])
        elif key in ("home", "end"):
            self._jump(0.0 if key == "home" else self.recording.seconds)
        else:
            return False
        return True

    @property
    def note(self) -> str:
        """What the recording lacks, until it was read."""
        return self.recording.note if self._watched_s < _NOTE_S else ""

    def label(self) -> str:
        mark = "⏸" if self.paused else "▶"
        return f"{mark} {SPEEDS[self._speed]}× {clock(self.at)}/{clock(self.recording.seconds)}"

    def _jump(self, at: float) -> None:
        self.at = max(0.0, min(at, self.recording.seconds))
        self.jumped = True


def main(words: list[str], dry_run: bool = False) -> int:
    """words: a run folder. On a terminal: the dashboard, played back; elsewhere: its log lines, all at once.

    Returns the exit code: 2 for words that make no sense, 1 where nothing can be read.
    """
    if len(words) != 1:
        return _say(f"one run, please: {_USAGE}", 2)
    if dry_run:
        print(f"would play back {words[0]}")
        return 0
    try:
        recording = Recording.read(Path(words[0]))
    except RunFolderError as error:
        return _say(str(error), 1)
    exit_on_signals()
    player = Player(recording)
    app = App(transport=player)
    try:
        with open_view(Console(), app=app) as view:
            if isinstance(view, PlainView):
                for index in range(len(recording.frames)):
                    view.update(recording.snapshot(index), recording.note)
                return 0
            _play(player, app, view)
    except KeyboardInterrupt:
        pass
    return 0


def _play(player: Player, app: App, view: View) -> None:
    stay = True
    while stay:
        if player.jumped:
            app.forget_episodes()
            player.jumped = False
        view.update(player.snapshot(), player.note)
        began = time.monotonic()
        stay = view.wait(REFRESH_S)
        player.advance(time.monotonic() - began)


def _say(line: str, code: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return code
