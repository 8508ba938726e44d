"""What a person sees of a run: a live page, or log lines where there is no terminal."""

from learner.dashboard.app import App
from learner.dashboard.client import DashboardClient, LearnerRefused, LearnerSilent, learner_of, main, run_dashboard
from learner.dashboard.live import LiveView, PlainView, View, open_view
from learner.dashboard.plain import plain_lines
from learner.dashboard.svg import render_svg

__all__ = [
    "App",
    "DashboardClient",
    "LearnerRefused",
    "LearnerSilent",
    "LiveView",
    "PlainView",
    "View",
    "learner_of",
    "main",
    "open_view",
    "plain_lines",
    "render_svg",
    "run_dashboard",
]
