"""``--role report``: the story of one run, or of several beside each other, as one HTML file."""

from learner.report.command import main
from learner.report.page import render
from learner.report.read import Run, read_run

__all__ = ["Run", "main", "read_run", "render"]
