"""An estimator from a module of the user's, named like an environment: ``module:function``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from configs.algorithm import CustomAdvantage
from learner.algorithm.context import Advantages, Context
from protocol.trajectory import Group


def custom(groups: list[Group], options: CustomAdvantage, context: Context) -> Advantages:
    """Call the user's function with ``options.args``."""
    return load_estimator(options.path)(groups, options.args, context)


@functools.cache
def load_estimator(path: str) -> Callable[[list[Group], dict[str, Any], Context], Advantages]:
    """The function that ``path`` names. Raises ``ValueError`` where there is none."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"algorithm.advantage.path: {path}: {error}; want module:function, with the module on PYTHONPATH"
        ) from error
    if not callable(function):
        raise ValueError(f"algorithm.advantage.path: {path} is a {type(function).__name__}, not a function")
    return function
