"""Another model at the same tasks: the environment, its tools and its judgement are ours, the turns are the endpoint's."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from configs.schema import Config
from envs.base import Message, StepResult, ToolEnv
from envs.calling import call_env
from envs.configured import prepare_tools, shutdown_tools
from learner.evaluation.endpoint import ChatClient, EndpointError, Reply
from learner.evaluation.scores import Outcome, kind_of
from protocol.messages import Task

log = logging.getLogger("rollway.eval")


async def score_endpoint(
    config: Config, env: type[ToolEnv], tasks: list[Task], on_done: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """One outcome of each task, in their order, ``eval.concurrency`` at a time. on_done: called after each.

    An episode that fails (no answer in several tries, an environment that raises) counts as
    not answered. Raises ``EndpointError`` as soon as the endpoint refuses.
    """
    places = asyncio.Semaphore(config.eval.concurrency)

    async def one(seed: int, task: Task) -> Outcome:
        async with places:
            outcome = await _play(config, env, client, task, seed)
        on_done()
        return outcome

    await prepare_tools([env])
    try:
        async with ChatClient(config) as client, asyncio.TaskGroup() as group:
            episodes = [group.create_task(one(seed, task)) for seed, task in enumerate(tasks)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await shutdown_tools([env])
    return [episode.result() for episode in episodes]


async def _play(config: Config, env_class: type[ToolEnv], client: ChatClient, task: Task, seed: int) -> Outcome:
    """One episode under the limits of ours: ``env.max_turns``, and ``model.max_tokens`` as the endpoint counts."""
    env, turns, finish = env_class(), 0, "max_turns"
    try:
        messages = list(await call_env(env.reset, task.payload, seed))
        tools = [tool.schema() for tool in env.tools]
        result = StepResult()
        while turns < config.env.max_turns and not result.done:
            reply = await client.turn(messages, tools, seed)
            turns += 1
            result = await call_env(env.step, reply.text(), reply.finish)
            if not result.done and reply.tokens and reply.tokens >= config.model.max_tokens:
                finish = "length"
                break
            messages += [reply.message(), *answers(reply, result.messages)]
        if result.done:
            finish = "done"
        else:
            result = await call_env(env.truncate)
        metrics = {name: float(value) for name, value in result.info.get("metrics", {}).items()}
        if not all(map(math.isfinite, metrics.values())):
            raise ValueError(f"a metric that is not a finite number: {metrics}")
    except EndpointError:
        raise
    except Exception as error:  # whatever one task's environment raises is that task's failure alone
        log.warning("task %s failed and counts as not answered: %s: %s", task.task_id, type(error).__name__, error)
        metrics, finish = {}, "failed"
    finally:
        await _close(env)
    return Outcome(task.task_id, task.dataset, kind_of(task.payload), finish, turns, metrics)


def answers(reply: Reply, messages: list[Message]) -> list[Message]:
    """The environment's messages in the form that the API takes: each call answered by its id, and by nothing else.

    A call that was written as text has no id: its response goes as a user message.
    """
    responses = [message for message in messages if message["role"] == "tool"]
    others = [message for message in messages if message["role"] != "tool"]
    out = []
    for index, call in enumerate(reply.calls):
        content = responses[index]["content"] if index < len(responses) else "The call was not run."
        out.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    for response in responses[len(reply.calls) :]:
        out.append({"role": "user", "content": f"<tool_response>\n{response['content']}\n</tool_response>"})
    return out + others


async def _close(env: ToolEnv) -> None:
    """An episode's result stands whatever its clean-up does."""
    try:
        await call_env(env.close)
    except Exception as error:
        log.warning("environment not closed: %s: %s", type(error).__name__, error)
