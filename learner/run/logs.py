"""Logging of the long-running roles: one line an event on stdout; the supervisor gives each process a file."""

from __future__ import annotations

import logging
import sys


def setup_logging() -> None:
    """Rollway's own events from INFO on, other libraries' from WARNING on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    logging.getLogger("rollway").setLevel(logging.INFO)
