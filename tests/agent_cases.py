"""Agents for the tests, as users write them, and what plays them on a canned server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

import openai

from actors.episode import Limits, Sampling
from actors.openai.endpoint import Endpoint
from actors.openai.player import AgentPlayer
from actors.openai.program import Agents
from actors.turnstile import Turnstile
from configs.agent import AgentConfig
from protocol.messages import Task
from tests.actor_cases import CHAT, sampler_for
from tests.canned_server import CannedServer, answer

TASK = Task(task_id="t1", dataset="shop", payload={"id": "t1", "question": "Price of a pear?", "answer": "7"})
LIMITS = Limits(max_turns=6, max_tokens=1500, turn_tokens=200)
PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Price of one unit.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
CALL = '<tool_call>{"name": "price", "arguments": {"item": "pear"}}</tool_call>'


def says(*turns: str):
    """A server that writes these turns, one a request, over all episodes."""
    waiting = iter(turns)

    def script(body):
        ids = [*CHAT._encode(next(waiting)), CHAT.eot_id]
        limit = body["sampling_params"]["max_tokens"]
        return answer(ids[:limit], "stop" if len(ids) <= limit else "length", [("0", 0, len(ids[:limit]))])

    return script


@contextlib.asynccontextmanager
async def seat(script, run, score="tests.agent_cases:contains", limits=LIMITS, **config):
    """(play, canned server): ``await play()`` is one episode. run: the name of an agent below, or a command."""
    agent = {"command": run} if isinstance(run, list) else {"path": f"tests.agent_cases:{run}"}
    config = AgentConfig(**agent, reward=score, **config)
    async with (
        CannedServer(script) as server,
        sampler_for(server) as sampler,
        Agents(config) as agents,
        Endpoint() as endpoint,
    ):
        player = AgentPlayer(config, agents, endpoint, CHAT, sampler, limits)

        def play(seed=5, on_turn=lambda report: None):
            return player.play(TASK, seed, Sampling(0.9, 0.95), "k", on_turn, Turnstile())

        yield play, server


async def play(script, run, **more):
    async with seat(script, run, **more) as (once, server):
        return await once(), server.requests


def contains(task, result, trajectory):
    assert trajectory.facts["task_id"] == task["id"] and not trajectory.rewards.any()
    return float(task["answer"] in (result or ""))


async def with_metrics(task, result, trajectory):
    return 0.5, {"em": 0.0, "turns": len(trajectory.turns)}


def nothing(task, result, trajectory):
    return None


# ── agents ───────────────────────────────────────────────────────────────────


async def shopper(task, base_url, api_key):
    """The loop that most agents are: ask, run the calls, append, ask again."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "system", "content": "You shop."}, {"role": "user", "content": task["question"]}]
        while True:
            completion = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=[PRICE])
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                item = json.loads(call.function.arguments)["item"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{item}: 7"})


def plain_shopper(task, base_url, api_key):
    """Synchronous and streaming; repeats what it was told in its own words: dicts, stripped, arguments written anew."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "developer", "content": "You shop."}, {"role": "user", "content": task["question"]}]
        while True:
            options = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.2}
            content, calls, usage = "", [], None
            for chunk in client.chat.completions.create(model="m", messages=messages, tools=[PRICE], **options):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    content += choice.delta.content or ""
                    calls += choice.delta.tool_calls or []
            assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0
            if not calls:
                return content
            repeated = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.function.name, "arguments": f" {c.function.arguments} "},
                }
                for c in calls
            ]
            messages.append(
                {"role": "assistant", "content": [{"type": "text", "text": content}], "tool_calls": repeated}
            )
            messages += [{"role": "tool", "tool_call_id": c.id, "content": "pear: 7"} for c in calls]


async def ask(client, *messages, **more):
    """The text that answers a conversation of strings, the user's and the policy's in turn."""
    roles = ("user", "assistant")
    history = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    completion = await client.chat.completions.create(model="m", messages=history, **more)
    return completion.choices[0].message.content


async def forgetful(task, base_url, api_key):
    """Replaces its first answer in the history, then goes on from there."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await ask(client, "one")
        second = await ask(client, "one", "(shortened)", "two")
        return await ask(client, "one", "(shortened)", "two", second, "three")


async def brancher(task, base_url, api_key):
    """Asks two things at once from the same state."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        first = await ask(client, "one")
        answers = await asyncio.gather(*(ask(client, "one", first, text) for text in ("left", "right")))
        return " ".join(answers)


async def endless(task, base_url, api_key):
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = ["go"]
        while True:
            messages += [await ask(client, *messages), "more"]


async def careful(task, base_url, api_key):
    """As ``endless``, but knows that a refusal is the end."""
    try:
        await endless(task, base_url, api_key)
    except openai.BadRequestError as error:
        assert error.code in ("episode_limit", "context_length_exceeded")
        return f"7, {error.code}"


async def clumsy(task, base_url, api_key):
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        return json.loads(await ask(client, "one"))


async def hanging(task, base_url, api_key):
    time.sleep(0.3)  # holds up the other agents, and nobody else
    await asyncio.sleep(60)


async def silent(task, base_url, api_key):
    return "7"


async def leaver(task, base_url, api_key):
    sys.exit("I am off")


async def caller(task, base_url, api_key):
    """Asks once with the options of ``OPTIONS``."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        return await ask(client, "one", **OPTIONS)


OPTIONS: dict = {}
PROGRAM = """
import json, sys, openai
task = json.load(sys.stdin)
client = openai.OpenAI()
reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])
print(reply.choices[0].message.content)
"""
