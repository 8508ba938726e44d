"""A program of the user's that plays the episodes itself, and calls the policy through the OpenAI client."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from configs.section import Positive, Seconds, Section


class AgentConfig(Section):
    path: str | None = None
    """``module:function`` of ``run(task, base_url, api_key) -> result``, a coroutine or a plain function."""
    command: list[str] | None = Field(default=None, min_length=1)
    """Instead of ``path``: a program and its arguments. It has OPENAI_BASE_URL and OPENAI_API_KEY set, reads the task
    as JSON from its input, and its result is what it prints."""
    reward: str
    """``module:function`` of ``score(task, result, trajectory) -> number``, or ``(number, {metric: number})``."""
    timeout_s: Seconds = 300.0
    """Longest episode; below ``gateway.lease_timeout_s``, which all tries of all episodes of a group have to fit into."""
    contexts: Positive = 8
    """Most contexts of an episode: 1 + how often the agent may rewrite its history or begin another conversation."""
    error_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of an episode whose agent raises or fails. Left out, such an episode is tried again, and its group is
    dropped when it keeps failing."""

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if (self.path is None) == (self.command is None):
            raise ValueError("agent.path names a function, agent.command a program: set one of them")
        return self
