"""An environment that the configuration gives further tools: opened and closed with each episode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from envs.base import Message, ToolEnv
from tools.base import Tool, close_tools
from tools.registry import Toolbox, refuse_namesakes
from tools.runner import blocking_calls

#: Most seconds for an environment's own ``reset`` or ``close`` where it is a plain function.
_BLOCKING_TIMEOUT_S = 120.0


class ConfiguredTools(ToolEnv):
    """Goes in front of an environment class, which need not know of it.

    The tools come after the environment's own, from ``reset`` on.
    """

    toolbox: ClassVar[Toolbox]
    _opened: list[Tool] = []  # noqa: RUF012 (replaced, never changed)

    async def reset(self, task: dict[str, Any], seed: int) -> list[Message]:
        messages = await _call(super().reset, task, seed)
        self._opened = await self.toolbox.open()
        self.tools = [*self.tools, *self._opened]
        refuse_namesakes(self.tools)
        return messages

    async def close(self) -> None:
        try:
            await _call(super().close)
        finally:
            await close_tools(self._opened)


async def prepare_tools(envs: Iterable[type[ToolEnv]]) -> None:
    """Connect what episodes of these classes share. Raises ``ValueError`` that says what to change."""
    for env in envs:
        for resource in env.shared:
            await resource.prepare()
        if issubclass(env, ConfiguredTools):
            await env.toolbox.prepare()


async def shutdown_tools(envs: Iterable[type[ToolEnv]]) -> None:
    """Let go of what episodes of these classes shared."""
    for env in envs:
        for resource in env.shared:
            await resource.shutdown()
        if issubclass(env, ConfiguredTools):
            await env.toolbox.shutdown()


async def _call(method: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(*args)
    return await blocking_calls.run(functools.partial(method, *args), _BLOCKING_TIMEOUT_S)
