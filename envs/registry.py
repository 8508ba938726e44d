"""Finds an environment class by its path in the configuration, and sets it up."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from envs.base import TaskSource, ToolEnv
from envs.configured import ConfiguredTools
from tools.importing import import_named
from tools.registry import Toolbox

Source = TypeVar("Source", bound=TaskSource)


def load_env(path: str, args: dict[str, Any], kind: type[Source] = ToolEnv) -> type[Source]:
    """The class at ``module:Class``, set up with ``args``; ``ValueError`` says what to change.

    kind: what it has to be; ``TaskSource`` where it only names the tasks of an agent.

    ``args["tools"]``, a list of ``tools.registry.ToolSpec``, gives any environment further
    tools. It is not passed on, unless ``setup`` has a parameter of that name itself.

    Class-level state is an environment's own, so what comes back is a subclass: one
    class may serve a process twice, with different arguments.
    """
    env = import_named(path, f"env.path {path!r}", "Class, e.g. envs.multihop:MultiHopQA")
    module_name, _, class_name = path.partition(":")
    if not (isinstance(env, type) and issubclass(env, kind)):
        raise ValueError(f"env.path {path!r}: {class_name!r} is not a {kind.__name__} class of {module_name}")
    names = {"__module__": env.__module__, "__qualname__": env.__qualname__}
    if kind is ToolEnv and "tools" in args and "tools" not in inspect.signature(env.setup).parameters:
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
