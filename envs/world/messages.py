"""How the scripted agent writes: thoughts, calls and answers in Hermes form."""

from __future__ import annotations

import json
from collections.abc import Sequence

from envs.world.program import Program

Message = dict[str, str]


def think(states: Sequence[Program]) -> str:
    """``<think> state; state</think>``."""
    return f"<think> {'; '.join(map(str, states))}</think>\n"


def call(query: str) -> str:
    """A search for an entity. The space before the name keeps its words single tokens."""
    body = json.dumps({"name": "search", "arguments": {"query": f" {query}"}})
    return f"<tool_call>\n{body}\n</tool_call>"


def answer(text: str) -> str:
    """``<answer> text</answer>``."""
    return f"<answer> {text}</answer>"


def say(role: str, content: str) -> Message:
    """One chat message."""
    return {"role": role, "content": content}


def rag_prompt(question: str, passages: str) -> str:
    """The one user message of the Naive RAG form: what was retrieved for the question, then the question."""
    return f"{passages}\n{question}"
