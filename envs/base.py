"""``ToolEnv``: one episode's world as the policy meets it.

The environment reads what the model wrote, runs the tools that it called and says what
it means: the messages that come next, the reward of the turn, whether it is over.
An instance lives for one episode. A new environment is a subclass with ``tasks`` and
its own ``reset`` and ``step``, or, where the policy calls tools and then answers, a
subclass of ``envs.answer_env.AnswerEnv`` with a few hooks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tools.base import Resource, Tool, ToolResult, close_tools
from tools.formats import HERMES, ToolFormat

Message = dict[str, Any]


@dataclass(slots=True)
class StepResult:
    """What the environment answers to one turn of the policy.

    messages: chat messages to append ({"role": "tool"|"user", "content": str}); empty when done.
    reward: process reward of this turn (finite float), before the outcome.
    done: the episode is over.
    info: plain values; on the last step ``metrics`` {"em": …, "f1": …} and ``outcome_reward``.
    tool_results: what each call of this turn did, in the order of the calls.
    """

    messages: list[Message] = field(default_factory=list)
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    tool_results: list[ToolResult] = field(default_factory=list)


class TaskSource(ABC):
    """Where tasks come from: all that the learner knows of an environment, and all that an agent needs of one."""

    @classmethod  # noqa: B027
    def setup(cls, **args: Any) -> None:
        """Build what all episodes share. Called once a process with ``env.args`` of the config."""

    @classmethod
    @abstractmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Task payloads of one data set ("train" or "eval" split), in a stable order.
        Each is a msgpack-able dict with a unique ``id``. Called by the learner."""


class ToolEnv(TaskSource):
    """Base of every environment. Class-level state (an index, a corpus) is shared by all
    episodes of a process and built once; instance state is one episode.

    ``reset``, ``step``, ``truncate`` and ``close`` may also be plain functions: they then run
    in a thread, off the event loop that hundreds of other episodes share.

    Any environment can be given further tools by ``env.args.tools``; see ``envs.registry``."""

    #: What the policy may call; an instance may set its own in ``reset``.
    tools: Sequence[Tool] = ()

    #: How the policy writes calls: ``self.tool_format.parse(text, self.tools, cut)``. Set before ``reset``.
    tool_format: ToolFormat = HERMES

    #: What all episodes of a process use, such as a tool that speaks to a service; set in ``setup``. Actors
    #: connect it before the first episode and let go of it after the last.
    shared: ClassVar[Sequence[Resource]] = ()

    @abstractmethod
    async def reset(self, task: dict[str, Any], seed: int) -> list[Message]:
        """Start an episode; return the first messages (system, user)."""

    @abstractmethod
    async def step(self, text: str, finish: str) -> StepResult:
        """Take what the policy wrote in this turn.

        text: the decoded turn without the end-of-turn token, with the ``<think>`` that the chat
        template opened it with, if any. finish: ``stop``, or
        ``length`` when the turn was cut by the token limit (an unfinished tool call
        is then not a call).
        """

    async def truncate(self) -> StepResult:
        """The episode was cut by a limit (turns, tokens): the outcome as it stands, done=True."""
        return StepResult(done=True, info={"metrics": {}, "outcome_reward": 0.0})

    async def close(self) -> None:
        """Free what the episode held: its tools, and in a subclass whatever else it opened."""
        await close_tools(self.tools)
