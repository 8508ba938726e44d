"""The newest episode, readable: what was asked, written, answered, and what it earned."""

from __future__ import annotations

import json
import re
from typing import Any

from rich.text import Text

from . import theme
from .fleet import allot
from .format import DASH, clean, finite, score, seconds
from .model import Snapshot, dicts, dig
from .tools import meaning

_GUTTER = 10
#: Chat-template tokens such as <|im_start|>user: noise to a reader.
_TEMPLATE = re.compile(
    r"<\|(?:im_start|start_header_id)\|>\s*(?:system|user|assistant|tool)?|<\|[^|<>]{1,40}\|>|</?tool_response>"
)
_USER = re.compile(r"<\|im_start\|>user(.*?)(?:<\|im_end\|>|$)", re.DOTALL)
_PARTS = re.compile(
    r"(?P<call><tool_call>.*?(?:</tool_call>|$))|(?P<think><think>.*?(?:</think>|$))|(?P<answer><answer>.*?(?:</answer>|$))",
    re.DOTALL,
)
_PART_STYLE = {"call": theme.ACCENT, "think": f"italic {theme.DIM}", "answer": f"bold {theme.GOOD}"}


def episode_panel(s: Snapshot, width: int, height: int) -> list[Text]:
    body = episode_lines(s.latest, width - 4, height - 2)
    return theme.frame("latest episode", body, width, height, _outcome(s.latest), _name(s.latest))


def episode_page(latest: dict[str, Any], width: int, height: int, scroll: int, place: str) -> tuple[list[Text], int]:
    """(lines, how far can be scrolled): the whole of it, with what its calls did and why it ended as it did.

    place: where it stands among others.
    """
    body = whole_episode(latest, width - 4) or [Text("no finished episode yet", style=theme.DIM)]
    shown, limit = theme.scrolled(body, scroll, height - 4)
    below = limit - min(scroll, limit)
    verdict = Text(why(latest), style=theme.GOOD if solved(latest) else theme.WARN)
    hint = Text(f"⋯ {below} more lines: ↓" if below else "", style=theme.DIM)
    body = [verdict, *shown, *[Text()] * (height - 4 - len(shown)), hint]
    note = f"{_name(latest)}{'  ' + place if place else ''}"
    return theme.frame("episode", body, width, height, _outcome(latest), note), limit


def whole_episode(latest: dict[str, Any], width: int) -> list[Text]:
    """Every segment, each call with its latency and fault under the turn that made it."""
    calls: dict[int, list[dict[str, Any]]] = {}
    for call in dicts(latest.get("tool_calls")):
        calls.setdefault(int(finite(call.get("turn")) or 0), []).append(call)
    lines, turn = [], 0
    for segment in dicts(latest.get("segments")):
        lines += _block(segment, width)
        if segment.get("role") == "policy":
            lines += [_call_line(call) for call in calls.get(turn, [])]
            turn += 1
    return lines


def solved(latest: dict[str, Any]) -> bool:
    """Exact match where the environment reports one, else a positive reward."""
    em = finite(dig(latest, "metrics", "em"))
    return em == 1.0 if em is not None else (finite(latest.get("reward")) or 0.0) > 0.5


def why(latest: dict[str, Any]) -> str:
    """What made the episode succeed or fail, as far as its record says."""
    if not latest:
        return ""
    if solved(latest):
        return "solved"
    ended = {"max_turns": "cut: no turns left", "length": "cut: no tokens left", "done": "the answer is not right"}
    reasons = [ended.get(str(latest.get("finish")), f"ended: {clean(latest.get('finish') or DASH)}")]
    faults = [
        f"{clean(c.get('name') or 'call')} {clean(c['fault'])}"
        for c in dicts(latest.get("tool_calls"))
        if c.get("fault")
    ]
    if faults:
        reasons.append(f"faulty calls: {', '.join(faults[:3])}{' …' if len(faults) > 3 else ''}")
    metrics = latest.get("metrics")
    partial = [
        f"{clean(name)} {score(value)}"
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if (number := finite(value)) is not None and number < 1 and name != "em"
    ]
    return "failed: " + "; ".join([*reasons, *([", ".join(partial)] if partial else [])])


def episode_lines(latest: dict[str, Any], width: int, room: int) -> list[Text]:
    """At most ``room`` lines. Every segment shows its beginning; what the policy wrote gets the spare room."""
    segments = dicts(latest.get("segments"))
    blocks = [block for seg in segments if (block := _block(seg, width))]
    if not blocks:
        return [Text("no finished episode yet", style=theme.DIM)]
    if len(blocks) > room:
        blocks = _ends(blocks, room)
    lines: list[Text] = []
    for block, given in zip(blocks, allot([len(b) for b in blocks], room), strict=True):
        if given < len(block):
            theme.fit(block[given - 1], width - 1).append("…", theme.DIM)
        lines += block[:given]
    return lines


def _ends(blocks: list[list[Text]], room: int) -> list[list[Text]]:
    """The first and the last blocks, one line each, and a word on those between where there is room for it."""
    if room < 3:
        return [blocks[0], *blocks[len(blocks) - room + 1 :]]
    head, tail = (room - 1) // 2, room - 1 - (room - 1) // 2
    gap = Text(f"{'':{_GUTTER}}⋯ {len(blocks) - head - tail} more", style=theme.DIM)
    return [*blocks[:head], [gap], *blocks[-tail:]]


def _block(segment: dict[str, Any], width: int) -> list[Text]:
    role, raw = segment.get("role"), str(segment.get("text") or "")
    if role == "prompt" and (asked := _USER.findall(raw)):
        raw = asked[-1]
    text = clean(_TEMPLATE.sub(" ", raw))
    if not text:
        return []
    tag, style = {"prompt": ("prompt", theme.BOLD), "policy": _version(segment.get("version"))}.get(
        str(role), ("response", theme.DIM)
    )
    body = _spoken(text) if role == "policy" else Text(text, style="" if role == "prompt" else theme.DIM)
    reward = finite(segment.get("reward"))
    if reward:
        body = theme.row(
            (f"{'+' if reward > 0 else ''}{score(reward)} ", theme.GOOD if reward > 0 else theme.BAD), body
        )
    wrapped = _wrap(body, width - _GUTTER)
    return [
        theme.row((f"{tag if i == 0 else '':<{_GUTTER - 2}.{_GUTTER - 2}}", style), ("│ ", theme.FRAME), line)
        for i, line in enumerate(wrapped)
    ]


def _wrap(text: Text, width: int) -> list[Text]:
    """Lines of at most ``width`` cells, broken at spaces where there are any."""
    lines: list[Text] = []
    while text.cell_len > width:
        head = text.copy()
        head.truncate(width, overflow="crop")
        cut = head.plain.rfind(" ")
        cut = cut if cut > width // 2 else len(head.plain)
        lines.append(text[:cut])
        text = text[cut:]
        text = text[len(text.plain) - len(text.plain.lstrip()) :]
    return [*lines, text] if text.plain else lines


def _spoken(text: str) -> Text:
    """What the policy wrote: thoughts dim, calls as ``name(argument=…)``, the answer standing out."""
    out, at = Text(), 0
    for found in _PARTS.finditer(text):
        kind, part = found.lastgroup or "", found.group()
        shown = _call(part) if kind == "call" else part
        out = theme.row(out, text[at : found.start()], (shown, _PART_STYLE[kind]))
        at = found.end()
    return theme.row(out, text[at:])


def _call(part: str) -> str:
    """A well-formed call in short; anything else as it was written."""
    try:
        call = json.loads(part.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        arguments = ", ".join(f"{key}={json.dumps(v, ensure_ascii=False)}" for key, v in call["arguments"].items())
        return f"→ {call['name']}({arguments})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return part


def _call_line(call: dict[str, Any]) -> Text:
    fault = clean(call.get("fault") or "")
    head = f"{'':{_GUTTER - 2}}│ "
    meant = f"fault: {fault}, {meaning(f'tool.{fault}')[1]}" if fault else "answered"
    took = f"{clean(call.get('name') or 'call')} {meant} ({seconds(call.get('latency_s'))})"
    return theme.row((head, theme.FRAME), (took, theme.BAD if fault else theme.DIM))


def _version(value: Any) -> tuple[str, str]:
    """The policy version of a turn and its hue: the newest one's where a push came in its middle."""
    span = value if isinstance(value, (list, tuple)) and len(value) == 2 else (value, value)
    first, last = (finite(v) for v in span)
    if first is None or last is None:
        return "policy", theme.ACCENT
    text = f"v{first:.0f}" if first == last else f"v{first:.0f}–{last:.0f}"
    return text, theme.version(int(last))


def _name(latest: dict[str, Any]) -> str:
    step = f" · step {latest['step']}" if finite(latest.get("step")) is not None else ""
    return clean(f"{latest.get('dataset', '')} {latest.get('task_id', '')}{step}")


def _outcome(latest: dict[str, Any]) -> Text:
    if not latest:
        return Text()
    reward = finite(latest.get("reward"))
    out = theme.row(("reward ", theme.DIM), (score(reward), theme.GOOD if (reward or 0) > 0.5 else theme.WARN))
    metrics = latest.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        if name in ("em", "f1"):
            out = theme.row(out, (f"  {name} ", theme.DIM), score(value))
    return theme.row(out, (f"  {clean(latest.get('finish') or DASH)}", theme.DIM))
