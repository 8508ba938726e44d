"""One episode to read: its turns as text, or its tokens with what they were trained with."""

from __future__ import annotations

import math
from typing import Any

from rich.text import Text

from learner.browse.library import Library
from learner.browse.listing import question, versions
from learner.dashboard import theme
from learner.dashboard.format import DASH, clean, finite, score
from learner.run.parts import parts
from learner.run.transcript import visible

Episode = dict[str, Any]

_GUTTER = 9
_STYLES = {
    "thought": f"italic {theme.DIM}",
    "call": theme.ACCENT,
    "answer": f"bold {theme.GOOD}",
    "response": theme.DIM,
}


def story(episode: Episode, width: int) -> list[Text]:
    """The turns, wrapped: who, the version that sampled it, rewards where they were earned."""
    out: list[Text] = []
    for segment in episode.get("segments") or []:
        reward = finite(segment.get("reward"))
        tag = _tag(segment)
        for i, (kind, text) in enumerate(found := parts(segment)):
            body = f"→ {text}" if kind == "call" else text
            lines = wrapped(visible(body).replace("\t", "  "), width - _GUTTER)
            if reward and i == len(found) - 1:
                lines[-1] = theme.row(lines[-1], (f"  {_signed(reward)}", theme.GOOD if reward > 0 else theme.BAD))
            style = _STYLES.get(kind, "bold" if kind == "question" else "")
            for j, part in enumerate(lines):
                head = tag if i == j == 0 else ""
                out.append(
                    theme.row(
                        (f"{head:<{_GUTTER - 2}.{_GUTTER - 2}}", theme.DIM), ("│ ", theme.FRAME), _styled(part, style)
                    )
                )
    return out


def headline(episode: Episode) -> Text:
    """Reward, metrics, end, versions and faults in one line."""
    reward = finite(episode.get("reward"))
    out = theme.row(("reward ", theme.DIM), (score(reward), theme.GOOD if (reward or 0) > 0.5 else theme.WARN))
    for name, value in list((episode.get("metrics") or {}).items())[:3]:
        out = theme.row(out, (f"  {clean(name)} ", theme.DIM), score(value))
    faults = [f"{clean(c.get('name'))}: {clean(c['fault'])}" for c in episode.get("tool_calls") or [] if c.get("fault")]
    return theme.row(
        out,
        (f"  {clean(episode.get('finish') or DASH)}  {versions(episode)}  step {episode.get('step')}", theme.DIM),
        (f"  {', '.join(faults)}" if faults else "", theme.BAD),
    )


def group_columns(members: list[Episode], width: int) -> list[Text]:
    """Members of a group side by side in columns of equal width; their question once, above."""
    each = width // len(members)
    columns = [_column(member, each - 2) for member in members]
    height = max(map(len, columns))
    asked = wrapped(question(members[0]), width)
    lines = [
        theme.row(*[part for c in columns for part in (theme.fit(c[i].copy() if i < len(c) else Text(), each - 2), ("│ ", theme.FRAME))])
        for i in range(height)
    ]  # fmt: skip
    return [*[_styled(part, "bold") for part in asked], Text(), *lines]


#: Headings of the token view.
TOKEN_HEADINGS = (
    f"{'place':>6} {'':1} {'token':<20} {'version':>7} {'log μ':>8} {'':8} {'ratio':>6} {'advantage':>9} {'reward':>7}"
)

#: A ratio this far from 1, either way, stands out.
_FAR = 1.2


def token_lines(episode: Episode, library: Library, sampled_only: bool) -> list[Text]:
    """One line a token: ● trained on, · masked; version, log-probability with a bar of e^(log μ), reward.

    Between them the importance ratio π_prox/μ and the advantage, of episodes that were trained on.
    """
    ids = episode.get("token_ids") or []
    logprobs, made_by = episode.get("logprobs") or [], episode.get("token_versions") or []
    advantages, proximal = episode.get("advantages") or [], episode.get("proximal") or []
    out, nth = [], 0
    for segment in episode.get("segments") or []:
        policy, stop = segment.get("role") == "policy", int(segment.get("stop") or 0)
        for place in range(int(segment.get("start") or 0), min(stop, len(ids))):
            if not policy and sampled_only:
                continue
            text = visible(library.token(ids[place]).replace("\n", "⏎").replace("\t", "⇥"))
            if not policy:
                out.append(theme.row((f"{place:>6} · {text:<20.20}", theme.DIM)))
                continue
            earned = finite(segment.get("reward")) if place == stop - 1 else None
            logprob, advantage = _at(logprobs, nth), _at(advantages, nth)
            version, ratio = _at(made_by, nth), _ratio(_at(proximal, nth), logprob)
            out.append(
                theme.row(
                    (f"{place:>6} ", theme.DIM),
                    ("● ", theme.ACCENT),
                    theme.fit(Text(text), 20),
                    (f" {f'v{version}' if version is not None else DASH:>7}", theme.ACCENT),
                    f" {score(logprob, 3):>8} ",
                    (_bar(logprob), theme.GOOD if (logprob or 0.0) > -0.7 else theme.WARN),
                    (f" {score(ratio):>6}", theme.WARN if ratio and max(ratio, 1 / ratio) > _FAR else ""),
                    (
                        f" {_signed(advantage):>9}",
                        theme.GOOD if (advantage or 0) > 0 else theme.BAD if advantage else "",
                    ),
                    (f" {_signed(earned):>7}" if earned else "", theme.GOOD if (earned or 0) > 0 else theme.BAD),
                )
            )
            nth += 1
    return out


def wrapped(text: str, width: int) -> list[Text]:
    """Lines of at most ``width`` cells; breaks of the text are kept, words are where they can be."""
    out: list[Text] = []
    for raw in text.splitlines() or [""]:
        rest = Text(raw)
        while rest.cell_len > width:
            head = rest.copy()
            head.truncate(max(1, width), overflow="crop")
            cut = head.plain.rfind(" ")
            cut = cut + 1 if cut > width // 2 else max(1, len(head.plain))
            out.append(rest[:cut])
            rest = rest[cut:]
        out.append(rest)
    return out


def _column(episode: Episode, width: int) -> list[Text]:
    reward = finite(episode.get("reward"))
    advantages = episode.get("advantages") or []
    head = theme.row(
        ("reward ", theme.DIM),
        (score(reward), theme.GOOD if (reward or 0) > 0.5 else theme.WARN),
        ("  adv ", theme.DIM),
        _signed(_at(advantages, 0)),
    )
    facts = Text(
        f"{versions(episode)} · {episode.get('turns')} turns · {episode.get('tokens')} tokens", style=theme.DIM
    )
    out = [head, facts, Text()]
    for segment in episode.get("segments") or []:
        for kind, text in parts(segment):
            if kind != "question":
                body = visible(f"→ {text}" if kind == "call" else text).replace("\t", "  ")
                out += [_styled(part, _STYLES.get(kind, "")) for part in wrapped(body, width)]
    return out


def _tag(segment: dict[str, Any]) -> str:
    if segment.get("role") == "prompt":
        return "asked"
    return versions(segment) if segment.get("role") == "policy" else "tool"


def _styled(text: Text, style: str) -> Text:
    """Beneath the spans that the text has already."""
    return theme.row(Text(text.plain, style=style, spans=text.spans)) if style else text


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _signed(value: Any) -> str:
    number = finite(value)
    return DASH if number is None else ("+" if number > 0 else "") + score(number)


def _ratio(proximal: Any, logprob: Any) -> float | None:
    """π_prox/μ of a token, bounded so that no broken record can overflow it."""
    here, then = finite(proximal), finite(logprob)
    return None if here is None or then is None else math.exp(max(-50.0, min(here - then, 50.0)))


def _bar(logprob: float | None, width: int = 8) -> str:
    """Probability of the token as a bar."""
    number = finite(logprob)
    full = 0 if number is None else round(math.exp(min(0.0, number)) * width)
    return "▰" * full + "▱" * (width - full)
