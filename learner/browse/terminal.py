"""The browser on a terminal: alternate screen, single keys, resize; the terminal is given back whatever happens."""

from __future__ import annotations

import sys

from rich.console import Console

from learner.browse.browser import Browser
from learner.browse.library import Library
from learner.dashboard.client import exit_on_signals
from learner.dashboard.keys import read_keys, single_keys
from learner.dashboard.screen import Screen
from learner.run.folder import RunFolderError

#: Seconds between two looks at the terminal's size.
_LOOK_S = 0.2


def show(library: Library, query: str, console: Console) -> int:
    """Until the person leaves; the exit code. SIGTERM and SIGHUP give the terminal back too."""
    exit_on_signals()
    browser = Browser(library, query)
    try:
        with single_keys(sys.stdin.fileno()) as descriptor, Screen(console) as screen:
            _draw(browser, screen)
            while not browser.over:
                keys = read_keys(descriptor, _LOOK_S)
                for key in keys:
                    _press(browser, key)
                if keys or screen.resized:
                    _draw(browser, screen)
    except (KeyboardInterrupt, EOFError):
        return 0
    return 0


def _draw(browser: Browser, screen: Screen) -> None:
    size = screen.console.size
    screen.draw(browser.picture(size.width, size.height))


def _press(browser: Browser, key: str) -> None:
    try:
        browser.key(key)
    except RunFolderError as error:  # the folder changed under us
        browser.note = str(error)
