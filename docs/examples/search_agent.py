"""An agent that exists already, trained as it is: a loop around the OpenAI client, with a search of its own.

PYTHONPATH=docs/examples python run.py agent.path=search_agent:run agent.reward=search_agent:score
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI

from envs.multihop import MultiHopQA
from envs.scoring import exact_match
from tools.search import SearchTool

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus for passages.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "what to look for"}},
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }
]


# ── the agent, which knows nothing of its training ───────────────────────────


async def answer(question: str, search: Callable[[str], str], client: AsyncOpenAI) -> str:
    """Ask, search as often as the model wants, and return what it says in the end."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        completion = await client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=TOOLS)
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            try:
                found = search(json.loads(call.function.arguments)["query"])
            except (KeyError, AttributeError) as error:
                found = f"Error: {error!r}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


# ── what training it takes: how to start it, and what its result is worth ────


async def run(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """``agent.path``. task: of ``env.path``, here a question of the built-in world."""
    tool = SearchTool(MultiHopQA.search_tool(task).index, top_k=1)  # as the built-in policy knows it
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        return await answer(task["question"], lambda query: tool.execute(query)[0], client)


def score(task: dict[str, Any], result: str | None, trajectory: Any) -> float:
    """``agent.reward``. result: what ``run`` returned; None where a limit ended the episode."""
    found = re.search(r"<answer>(.*?)</answer>", result or "")
    return exact_match(found[1], task["answers"]) if found else -0.5
