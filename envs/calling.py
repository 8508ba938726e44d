"""Calls an environment's methods, plain or coroutine, within a time limit."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from tools.runner import blocking_calls

#: The longest that one call of an environment may take, seconds. Tools have tighter limits of their own.
ENV_TIMEOUT_S = 120.0


async def call_env(method: Callable[..., Any], *args: Any) -> Any:
    """What ``method`` returns. A plain function may block: it runs in a thread.

    Raises ``TimeoutError`` or ``tools.threads.GivenUp`` after ``ENV_TIMEOUT_S``, and whatever the method raises.
    """
    if inspect.iscoroutinefunction(method):
        async with asyncio.timeout(ENV_TIMEOUT_S):
            return await method(*args)
    return await blocking_calls.run(functools.partial(method, *args), ENV_TIMEOUT_S)
