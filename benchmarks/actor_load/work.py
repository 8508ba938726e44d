"""The work that all arms do: episodes of four turns with a short answer of the environment after each."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from actors.chat import ChatFormat
from envs.base import StepResult, ToolEnv
from tools.base import Tool
from tools.runner import run_calls

MODEL = Path("configs/models/tiny-agent")
TURNS = 4
#: About what a turn with one tool call has.
TURN_TOKENS = 40

#: Long enough for requests of 400 tokens on average.
QUESTION = "When was Blind Castle's star born? " * 34
CALL = '<tool_call>{"name": "search", "arguments": {"query": "Blind Castle"}}</tool_call>'
FOUND = "Blind Castle is a film of 1952 with Ada Moss, who was born in Port Arden in 1921. {}"


class Search(Tool):
    """Always finds the same."""

    name = "search"
    description = "Search the encyclopaedia; returns one passage."
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}  # noqa: RUF012

    async def execute(self, query: str) -> str:
        return FOUND.format(0)


class Lookups(ToolEnv):
    """``call``: read each turn's tool call, check its arguments and run it; else answer without looking."""

    tools = (Search(),)
    call = False

    @classmethod
    def setup(cls, call: bool = False) -> None:
        cls.call = call

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict]:
        return [{"id": f"q{i}"} for i in range(limit or 1000)]

    async def reset(self, task: dict, seed: int) -> list[dict]:
        self._seed, self._turns = seed, 0
        return [{"role": "user", "content": f"{task['id']} {QUESTION}"}]

    async def step(self, text: str, finish: str) -> StepResult:
        self._turns += 1
        results = await run_calls(self.tools, self.tool_format.parse(text)) if self.call else []
        if self._turns == TURNS:
            info = {"metrics": {"em": 1.0}, "outcome_reward": 1.0}
            return StepResult(done=True, info=info, tool_results=results)
        # Of its own in every turn: no cache may help.
        found = FOUND.format(self._seed + self._turns)
        messages = [{"role": "tool", "name": "search", "content": found}]
        return StepResult(messages, tool_results=results)


def turn_ids(chat: ChatFormat) -> list[int]:
    """Ids of the canned turn, ``TURN_TOKENS`` or a few more: some thought, the call, the end of the turn."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    thought = "look"
    while True:
        ids = [*tokenizer.encode(f"{thought} {CALL}", add_special_tokens=False).ids, chat.eot_id]
        if len(ids) >= TURN_TOKENS:
            return ids
        thought += " look"


def requests(chat: ChatFormat) -> list[list[int]]:
    """Token ids of the requests of one episode, turn by turn."""
    schemas = [tool.schema() for tool in Lookups.tools]
    turn = turn_ids(chat)
    ids = chat.prompt_ids([{"role": "user", "content": QUESTION}], schemas)
    answer = chat.continue_ids(turn, [{"role": "tool", "name": "search", "content": FOUND.format(1234567890)}], schemas)
    return [ids + k * (turn + answer) for k in range(TURNS)]


def canned_answers(chat: ChatFormat) -> dict[str, bytes]:
    """Route → body, as vLLM 0.32 writes it for one turn, for token-level clients and for chat clients."""
    ids = turn_ids(chat)
    tokens = [
        {"token_id": i, "logprob": -0.12345678 * (n % 7 + 1), "rank": 1, "top_logprobs": []} for n, i in enumerate(ids)
    ]
    generate = {
        "request_id": "generate-tokens-5f0e8c6f9d2b4c7d",
        "choices": [
            {
                "index": 0,
                "logprobs": {"content": tokens},
                "finish_reason": "stop",
                "token_ids": ids,
                "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}],
            }
        ],
    }
    text = chat.decode(ids)
    words = [
        {"token": f"token_id:{i}", "logprob": t["logprob"], "bytes": None, "top_logprobs": []}
        for i, t in zip(ids, tokens, strict=True)
    ]
    completion = {
        "id": "chatcmpl-5f0e8c6f9d2b4c7d",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": words},
                "finish_reason": "stop",
                "token_ids": ids,
            }
        ],
        "prompt_token_ids": requests(chat)[1],
        "usage": {"prompt_tokens": 400, "completion_tokens": len(ids), "total_tokens": 400 + len(ids)},
    }
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return {
        "/inference/v1/generate": encode(generate).encode(),
        "/v1/chat/completions": encode(completion).encode(),
    }
