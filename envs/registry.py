"""Finds an environment class by its path in the configuration, and sets it up."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from envs.base import ToolEnv
from envs.configured import ConfiguredTools
from tools.registry import Toolbox


def load_env(path: str, args: dict[str, Any]) -> type[ToolEnv]:
    """The class at ``module:Class``, set up with ``args``; ``ValueError`` says what to change.

    ``args["tools"]``, a list of ``tools.registry.ToolSpec``, gives any environment further
    tools. It is not passed on, unless ``setup`` has a parameter of that name itself.

    Class-level state is an environment's own, so what comes back is a subclass: one
    class may serve a process twice, with different arguments.
    """
    module_name, separator, class_name = path.partition(":")
    if not (separator and module_name and class_name):
        raise ValueError(f"env.path {path!r}: write module:Class, e.g. envs.multihop:MultiHopQA")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the module that was asked for: a missing import *inside* it is another fault, and shown as such.
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise ValueError(f"env.path {path!r}: no module {error.name!r}; is its folder on PYTHONPATH?") from None
        raise
    env = getattr(module, class_name, None)
    if not (isinstance(env, type) and issubclass(env, ToolEnv)):
        raise ValueError(f"env.path {path!r}: {class_name!r} is not a ToolEnv class of {module_name}")
    names = {"__module__": env.__module__, "__qualname__": env.__qualname__}
    if "tools" in args and "tools" not in inspect.signature(env.setup).parameters:
        args = dict(args)
        names["toolbox"] = _toolbox(args.pop("tools"))
        env = type(class_name, (ConfiguredTools, env), names)
    else:
        env = type(class_name, (env,), names)
    try:
        inspect.signature(env.setup).bind(**args)
    except TypeError as error:
        raise ValueError(f"env.args do not fit {path}: {error}") from None
    env.setup(**args)
    return env


def _toolbox(specs: Any) -> Toolbox:
    if not isinstance(specs, list):
        raise ValueError(f"env.args.tools: want a list, got {specs!r}")
    try:
        return Toolbox(specs)
    except ValueError as error:
        raise ValueError(f"env.args.tools: {error}") from None
