"""Plays a task of the ``verifiers`` library: its environment runs the episode, the policy answers for its model."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from envs.verifiers_tasks import MISSING
from protocol.trajectory import Trajectory

try:
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    from actors.openai import verifiers_harness
except ImportError as error:  # one line for a person: this is the user's agent, loaded by its name
    raise ValueError(f"{MISSING} ({error})") from error

#: How the library knows our harness; it looks harnesses up as modules of the top level.
HARNESS = "rollway_chat"
sys.modules.setdefault(HARNESS, verifiers_harness)


async def run(task: dict[str, Any], base_url: str, api_key: str) -> dict[str, Any]:
    """``agent.path``: one episode of a task of ``envs.verifiers_tasks``: {"reward", "metrics"}.

    Every episode has an environment, and what that serves, to itself. Raises what ended it, if anything did.
    """
    env = load_environment(env_config(task["env"]))
    with _key_in_environment(api_key) as variable:
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=variable)
        taskset = env.taskset
        kind = taskset.task_type()
        played = kind(kind.data_type().model_validate(task["data"]), taskset.config.task)
        async with env.serving():
            episode = await env.run_episode(played, vf.ModelContext(model="policy", client=client))
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    errors = [*episode.errors, *(error for trace in traces for error in trace.errors)]
    if errors or len(traces) != 1:
        why = f"{errors[-1].type}: {errors[-1].message}" if errors else f"{len(traces)} agents of it are trainable"
        raise RuntimeError(f"the verifiers environment failed: {why}")
    [trace] = traces
    metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
    metrics |= {name: float(reward.value) for name, reward in trace.rewards.items() if reward is not None}
    return {"reward": trace.reward, "metrics": metrics}


def score(
    task: dict[str, Any], result: dict[str, Any] | None, trajectory: Trajectory
) -> tuple[float, dict[str, float]]:
    """``agent.reward``: what the environment said, shown as ``em`` as well; 0 for an episode that a limit ended."""
    if result is None:
        return 0.0, {"em": 0.0}
    return result["reward"], {"em": result["reward"], **result["metrics"]}


def env_config(block: dict[str, Any]) -> vf.EnvConfig:
    """The library's configuration of an environment, for one policy on this machine.

    A seat without a harness of its own chats and calls tools in this process, where the library
    would start a shell; one without a runtime runs here, where it would rent a machine.
    Raises ``ValueError`` where more than one seat would be the policy.
    """
    config = resolve_env_config(block)
    seats = agent_config_fields(config)
    playing = [name for name, seat in seats.items() if seat.client is None]
    if len(playing) != 1:
        raise ValueError(
            f"the seats {', '.join(playing)} of this environment would all be the policy: "
            "give all but one a client of their own"
        )
    changed = {}
    for name, seat in seats.items():
        given = block.get(name) or {}
        options = {**given, "runtime": given.get("runtime") or {"type": "subprocess"}}
        if seat.harness is None and vf.default_agent_harness(config.taskset.id).id == "bash":
            options["harness"] = {"id": HARNESS}
        changed[name] = options
    return resolve_env_config({**block, **changed})


@contextlib.contextmanager
def _key_in_environment(key: str) -> Iterator[str]:
    """The library takes keys from environment variables alone, and keeps those with this name from what it starts."""
    name = f"ROLLWAY_API_KEY_{secrets.token_hex(8)}"
    os.environ[name] = key
    try:
        yield name
    finally:
        del os.environ[name]
