"""``--role browse``: the recorded episodes of a run, in the terminal: filter, read, compare, token by token."""

from learner.browse.command import main

__all__ = ["main"]
