"""``python run.py --role browse RUN [FILTER …]``"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from learner.browse.filters import FilterError, parse
from learner.browse.library import Library
from learner.run.folder import RunFolderError

_USAGE = "python run.py --role browse RUN [FILTER …]"


def main(words: list[str], dry_run: bool = False) -> int:
    """words: a run folder, then a filter such as ``reward<0.5 dataset:hotpot``.

    On a terminal: the browser, until the person leaves. Elsewhere: the list, one episode a
    line. Returns the exit code: 2 for words that make no sense, 1 where nothing can be read.
    """
    if not words:
        return _say(f"which run? {_USAGE}", 2)
    folder, query = Path(words[0]), " ".join(words[1:])
    try:
        keep = parse(query)
        if dry_run:
            print(f"would browse {folder}" + (f", {query}" if query else ""))
            return 0
        library = Library.read(folder)
    except FilterError as error:
        return _say(str(error), 2)
    except RunFolderError as error:
        return _say(str(error), 1)

    from rich.console import Console

    console = Console()
    if console.is_terminal and sys.stdin.isatty() and not console.is_dumb_terminal:
        from learner.browse.terminal import show

        return show(library, query, console)
    from learner.browse.listing import plain

    try:
        for line in plain(e for e in library.episodes if keep(e)):
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # ``| head`` has seen enough; Python would complain once more at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _say(line: str, code: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return code
