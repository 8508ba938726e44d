"""``python -m learner.dashboard ADDRESS --svg FILE``: a picture of a running learner's page."""

from __future__ import annotations

import argparse
import sys

from .client import CONNECT_S, DashboardClient
from .svg import render_svg


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.dashboard", description=__doc__)
    parser.add_argument("address", nargs="?", default="tcp://127.0.0.1:5600", help="the learner's gateway")
    parser.add_argument("--svg", required=True, metavar="FILE")
    parser.add_argument("--size", default="120x36", metavar="COLUMNSxROWS")
    args = parser.parse_args()
    try:
        width, height = map(int, args.size.split("x"))
        with DashboardClient(args.address) as client:
            render_svg(client.snapshot(CONNECT_S), width, height, args.svg)
    except (ConnectionError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
