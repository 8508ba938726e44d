"""The help page: what the keys do and what the words mean."""

from __future__ import annotations

from rich.text import Text

from . import theme

_KEYS = (
    ("1 – 6, Tab", "the pages"),
    ("↑ ↓ PgUp PgDn", "scroll; Home, End: to the ends"),
    ("/", "filter rows by words; Esc takes it away"),
    ("← →", "on the episode page: earlier and later ones"),
    ("p", "hold the picture"),
    ("? h", "this help"),
)
_REPLAY_KEYS = (
    ("1 – 6, Tab", "the pages"),
    ("↑ ↓ PgUp PgDn", "scroll"),
    ("/", "filter rows by words; Esc takes it away"),
    ("p, space", "stop and go on"),
    ("← →", "back and on by a fiftieth; , and . by one picture"),
    ("Home End", "the beginning, the end"),
    ("+ −", "faster, slower"),
    ("? h", "this help"),
)
_WORDS = (
    ("reward", "dots: single steps; line: mean of the last ones"),
    ("exact match", "lines: training episodes; marks: held out, greedy; dashes: levels to compare with"),
    ("pipeline", "▲ marks the stage that limits the run; above an arrow what passes, below it what waits"),
    ("queue", "groups leased, ready or in training, of (η + 1) batches that the staleness bound admits"),
    ("staleness", "learner's version when used − version that sampled, by token"),
    ("ratio, ESS", "π_prox/μ of a token; effective sample size of the batch under these weights"),
    ("clip", "share of tokens that the loss clips"),
    ("mismatch", "log π of the learner against log μ of the sampler, staleness included"),
    ("zero-signal", "groups of equal rewards: they teach nothing"),
    ("ledger", "groups used, too stale and made again, lost, delivered twice, failed"),
    ("leases", "groups that an actor holds of those it can; episodes of an evaluation (eval) apart"),
    ("p50, p99", "of requests to a server as the actors see them, or of tool calls"),
    ("heard", "since the last heartbeat of an actor, the last answer of a server"),
    ("malformed", "the policy wrote a call that nobody can read; the model is told, the episode goes on"),
    ("version", "colour and number of a turn: the weights that sampled it"),
)


def help_lines(width: int, leave: str, replay: bool) -> list[Text]:
    """leave: what the key q does."""
    keys = [*(_REPLAY_KEYS if replay else _KEYS), ("q, Ctrl-C", leave)]
    return [
        *[_line(key, means, theme.ACCENT, width) for key, means in keys],
        Text(),
        *[_line(word, means, theme.BOLD, width) for word, means in _WORDS],
    ]


def _line(head: str, text: str, style: str, width: int) -> Text:
    return theme.fit(theme.row((f"{head:<15}", style), text), width)
