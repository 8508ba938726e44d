"""``python run.py --role report RUN [RUN …] [out=FILE]``"""

from __future__ import annotations

import sys
from pathlib import Path

from learner.run.durable import replace_text
from learner.run.folder import RunFolderError

_USAGE = "python run.py --role report RUN [RUN …] [out=FILE]"


def main(words: list[str], dry_run: bool = False) -> int:
    """words: run folders, and ``out=FILE``. Writes ``RUN/report.html`` by default, ``compare.html`` beside several.

    Returns the exit code: 2 for words that make no sense, 1 for a run that cannot be read.
    """
    folders = [Path(word) for word in words if not word.startswith("out=")]
    outs = [Path(word.removeprefix("out=")) for word in words if word.startswith("out=")]
    if not folders or len(outs) > 1:
        return _say(f"which run? {_USAGE}", 2)
    # Of several, the file belongs to none: it lies beside the first.
    default = folders[0] / "report.html" if len(folders) == 1 else folders[0].resolve().parent / "compare.html"
    target = outs[0] if outs else default
    if dry_run:
        print(f"would read {', '.join(map(str, folders))} and write {target}")
        return 0
    from learner.report.page import render
    from learner.report.read import read_run

    try:
        runs = [read_run(folder, name) for folder, name in zip(folders, unique_names(folders), strict=True)]
        html = render(runs)
        replace_text(target, html)
    except RunFolderError as error:
        return _say(str(error), 1)
    except OSError as error:
        return _say(f"{target} cannot be written ({error.strerror or error}): give another file by out=FILE", 1)
    print(f"{target} ({len(html.encode()) / 1024:.0f} KiB): open it in a browser, it needs no network")
    return 0


def unique_names(folders: list[Path]) -> list[str]:
    """The last part of each path, longer where two are the same, numbered where a folder is named twice."""
    parts = [folder.resolve().parts for folder in folders]
    depth = 1
    while depth < max(map(len, parts)) and len({p[-depth:] for p in parts}) < len(set(parts)):
        depth += 1
    names: list[str] = []
    for part in parts:
        name = "/".join(part[-depth:])
        names.append(name if name not in names else f"{name} ({names.count(name) + 1})")
    return names


def _say(line: str, code: int) -> int:
    print(f"error: {line}", file=sys.stderr)
    return code
