"""The alternate screen: only lines that changed are sent, so that slow links keep up; it is always given back."""

from __future__ import annotations

import atexit
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

#: Begin and end of a picture, for terminals that can show it at once (others ignore this).
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"


class Screen:
    """``draw`` shows lines. Whatever ends the ``with`` block, the terminal is as before."""

    def __init__(self, console: Console):
        self.console = console
        self._shown: list[str] = []
        self._size = console.size
        self._open = False

    def __enter__(self) -> Self:
        # For an exit that skips the ``with`` block (sys.exit in a thread, a hard interpreter end).
        atexit.register(self._restore)
        self._open = True
        self.console.set_alt_screen(True)
        self.console.show_cursor(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        atexit.unregister(self._restore)

    @property
    def resized(self) -> bool:
        """Whether the window has another size than the last picture."""
        return self.console.size != self._size

    def draw(self, lines: list[Text]) -> None:
        """lines: as many as the console is high, each as wide as it is."""
        if self.resized or len(lines) != len(self._shown):
            self._shown, self._size = [], self.console.size
        new = self._rendered(lines)
        clear = "" if self._shown else "\x1b[2J"
        old = self._shown or [""] * len(new)
        changed = [
            f"\x1b[{row};1H\x1b[2K{line}"
            for row, (line, was) in enumerate(zip(new, old, strict=True), 1)
            if line != was
        ]
        self._shown = new
        if changed:
            self.console.file.write(f"{_BEGIN}{clear}{''.join(changed)}{_END}")
            self.console.file.flush()

    def _rendered(self, lines: list[Text]) -> list[str]:
        """Each line as text with the terminal's colour codes."""
        with self.console.capture() as captured:
            for line in lines:
                self.console.print(line, end="\n", overflow="crop", no_wrap=True, crop=True, soft_wrap=False)
        return captured.get().split("\n")[: len(lines)]

    def _restore(self) -> None:
        if self._open:
            self._open = False
            self.console.show_cursor(True)
            self.console.set_alt_screen(False)
