"""``python -m benchmarks.pictures RUN``: the dashboard's pages as SVG, drawn from a recorded run.

Each page in a wide window, in one of 80 × 24, and as it is without colour. These are the pictures of the documents.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from pathlib import Path

from learner.dashboard import App, render_svg
from learner.dashboard.app import PAGES
from learner.dashboard.recording import Recording
from learner.run.folder import RunFolderError

#: Suffix of the file → columns, rows, colour.
FORMS = {"": (120, 36, True), "-80x24": (80, 24, True), "-no-color": (80, 24, False)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--at", type=float, help="second of the recording (default: its end)")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="'' is the wide one")
    parser.add_argument("--prefix", default="", help="before the names of the files")
    args = parser.parse_args(argv)
    try:
        recording = Recording.read(args.run)
    except RunFolderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    at = recording.seconds if args.at is None else args.at
    app = App()
    app.observe(recording.snapshot(max(0, bisect_right(recording.times, at) - 1)))
    for page in args.pages:
        app.page = page
        for suffix in args.forms:
            width, height, colour = FORMS[suffix]
            file = args.out / f"{args.prefix}{page}{suffix}.svg"
            render_svg(app.lines(width, height), file, colour)
            print(f"{file} ({file.stat().st_size / 1024:.0f} KiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
