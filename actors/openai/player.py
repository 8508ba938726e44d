"""One episode that an agent of the user's plays: its calls, its result, its reward, as one ``Trajectory``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from actors.chat import ChatFormat
from actors.episode import EpisodeFailed, Limits, Sampling, TurnReport, finished, finite
from actors.openai.endpoint import Endpoint
from actors.openai.program import AgentFailed, Agents
from actors.openai.record import Context
from actors.openai.session import Session
from actors.sampler import Sampler
from actors.turnstile import Turnstile
from configs.agent import AgentConfig
from envs.calling import ENV_TIMEOUT_S
from protocol.messages import Task
from protocol.trajectory import Trajectory


class AgentPlayer:
    def __init__(
        self,
        config: AgentConfig,
        agents: Agents,
        endpoint: Endpoint,
        chat: ChatFormat,
        sampler: Sampler,
        limits: Limits,
    ):
        self._config, self._agents, self._endpoint = config, agents, endpoint
        self._chat, self._sampler, self._limits = chat, sampler, limits

    async def play(
        self,
        task: Task,
        seed: int,
        sampling: Sampling,
        key: str,
        on_turn: Callable[[TurnReport], None],
        turnstile: Turnstile,
    ) -> Trajectory:
        """As ``actors.episode.run_episode``. Raises ``EpisodeFailed``.

        An agent that raises because a limit refused its call is scored like one that was cut, with None
        for its result. Other failures fail the episode, unless ``agent.error_reward`` prices them.
        """
        session = Session(
            self._chat, self._sampler, seed, self._limits, self._config.contexts, sampling, key, on_turn, turnstile
        )
        result, error = None, None
        with self._endpoint.open(session) as (base_url, api_key):
            try:
                result = await self._agents.run(task.payload, base_url, api_key, self._config.timeout_s)
            except AgentFailed as failure:
                error = failure
        limit = session.refused.limit if session.refused else None
        if session.failure:
            raise EpisodeFailed("sampling", str(session.failure)) from session.failure
        if not session.contexts:
            why = error or session.refused or "it ended without a call of the policy"
            raise EpisodeFailed("tokens" if session.refused else "agent", str(why))
        if error and not limit and self._config.error_reward is None:
            raise EpisodeFailed("agent", str(error)) from error
        finish = limit or ("error" if error else "done")
        facts = {
            "task_id": task.task_id,
            "dataset": task.dataset,
            "seed": seed,
            "finish": finish,
            "process_reward": 0.0,
            "tool_calls": _numbered(session.contexts, session.tool_calls),
        }
        trajectory = finished([context.row for context in session.contexts], limit is None, facts)
        if finish == "error":
            outcome, metrics = self._config.error_reward, {"em": 0.0}
        else:
            outcome, metrics = await self._judge(task.payload, result, trajectory)
        last = trajectory.turns[-1, 1] - 1
        trajectory.rewards[last] = outcome
        finite(float(trajectory.rewards[last]), "the reward as float32")
        facts |= {"outcome_reward": outcome, "metrics": {**metrics, "contexts": float(len(session.contexts))}}
        return trajectory

    async def _judge(self, task: dict[str, Any], result: Any, trajectory: Trajectory) -> tuple[float, dict[str, float]]:
        try:
            judged = await self._agents.score(task, result, trajectory, ENV_TIMEOUT_S)
        except AgentFailed as failure:
            raise EpisodeFailed("reward", str(failure)) from failure
        outcome, metrics = judged if isinstance(judged, tuple) and len(judged) == 2 else (judged, {"em": judged})
        outcome = finite(outcome, "the value of agent.reward")
        if not isinstance(metrics, dict):
            raise EpisodeFailed("reward", f"agent.reward returned {metrics!r} for metrics, not a dict of numbers")
        return outcome, {str(name): finite(value, f"metric {name!r}") for name, value in metrics.items()}


def _numbered(contexts: Sequence[Context], calls: Sequence[tuple[Context, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Facts of calls in the order of turns, which are numbered over all contexts, as the trajectory has them."""
    firsts = accumulate((len(context.row.turns) for context in contexts), initial=0)
    first = {id(context): number for context, number in zip(contexts, firsts, strict=False)}
    numbered = [{**fact, "turn": first[id(context)] + fact["turn"]} for context, fact in calls]
    return sorted(numbered, key=lambda fact: fact["turn"])
