"""What a model wrote, in the parts that a person tells apart: thoughts, tool calls, answers, responses."""

from __future__ import annotations

import json
import re
from typing import Any

#: Tokens of chat templates such as <|im_start|>user: noise to a reader.
_TEMPLATE = re.compile(
    r"<\|(?:im_start|start_header_id)\|>\s*(?:system|user|assistant|tool)?|<\|[^|<>]{1,40}\|>|</?tool_response>"
)
_USER = re.compile(r"<\|im_start\|>user\n?(.*?)(?:<\|im_end\|>|$)", re.DOTALL)
_PARTS = re.compile(
    r"<tool_call>(?P<call>.*?)(?:</tool_call>|$)|<think>(?P<thought>.*?)(?:</think>|$)"
    r"|<answer>(?P<answer>.*?)(?:</answer>|$)",
    re.DOTALL,
)


def parts(segment: dict[str, Any]) -> list[tuple[str, str]]:
    """(kind, text) of a segment of ``episodes.jsonl``, empty ones left out.

    kind: ``question`` (of a prompt, its last user message), ``response`` (of the
    environment), and of the policy ``thought``, ``call``, ``answer`` or ``text``.
    """
    raw = str(segment.get("text") or "")
    if segment.get("role") == "prompt":
        asked = _USER.findall(raw)
        return _kept([("question", asked[-1] if asked else raw)])
    if segment.get("role") != "policy":
        return _kept([("response", raw)])
    out, at = [], 0
    for found in _PARTS.finditer(raw):
        kind = found.lastgroup or "text"
        text = found.group(kind)
        out += [("text", raw[at : found.start()]), (kind, call(text) if kind == "call" else text)]
        at = found.end()
    return _kept([*out, ("text", raw[at:])])


def call(text: str) -> str:
    """A well-formed call as ``name(argument="…")``; anything else as it was written."""
    try:
        made = json.loads(text)
        arguments = ", ".join(f"{key}={json.dumps(v, ensure_ascii=False)}" for key, v in made["arguments"].items())
        return f"{made['name']}({arguments})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text


def _kept(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    plain = [(kind, _TEMPLATE.sub("", text).strip()) for kind, text in found]
    return [(kind, text) for kind, text in plain if text]
