"""Tasks of environments of the ``verifiers`` library; ``actors.openai.verifiers_agent`` plays them.

The library is optional: ``pip install --no-deps -r configs/requirements/verifiers.txt``.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

from envs.base import TaskSource

MISSING = "environments of verifiers need that library: pip install --no-deps -r configs/requirements/verifiers.txt"


class VerifiersTasks(TaskSource):
    """``env.args``: ``environments``, {name: {"env": …, "select": …}}, one entry a data set of ``env.train`` and ``env.eval``.

    env: the library's own ``[env]`` block, as in ``{"taskset": {"id": "reverse-text"}}``. select: its ``[select]``
    block (include, exclude, shuffle, seed, skip, limit); a taskset without end needs ``limit`` in it.
    """

    environments: dict[str, dict[str, Any]]

    @classmethod
    def setup(cls, environments: dict[str, dict[str, Any]]) -> None:
        cls.environments = environments

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The same tasks in both splits: name a data set apart for what is held out.

        Raises ``ValueError`` for a data set without an entry, and for whatever the library finds wrong with it.
        """
        if (entry := cls.environments.get(dataset)) is None:
            raise ValueError(f"env.args.environments has no {dataset!r}; it has {', '.join(cls.environments)}")
        if unknown := set(entry) - {"env", "select"}:
            raise ValueError(
                f"env.args.environments.{dataset}: unknown field {sorted(unknown)[0]!r}; it has env, select"
            )
        return _payloads(dataset, json.dumps(entry), limit)


@functools.lru_cache(maxsize=16)
def _payloads(dataset: str, entry: str, limit: int | None) -> list[dict[str, Any]]:
    """A run asks for the same tasks with each evaluation, and tasksets may load a lot to name them."""
    options = json.loads(entry)
    try:
        from verifiers.v1 import SelectConfig
        from verifiers.v1.utils.loaders import load_taskset, resolve_env_config
    except ImportError as error:
        raise ValueError(f"{MISSING} ({error})") from error
    try:
        taskset = load_taskset(resolve_env_config(options["env"]).taskset)
        view = taskset.select(SelectConfig.model_validate(options.get("select", {})))
    except (KeyError, ImportError, TypeError, ValueError) as error:
        raise ValueError(f"env.args.environments.{dataset}: {type(error).__name__}: {error}") from error
    if limit is None and not view.bounded:
        raise ValueError(f"env.args.environments.{dataset}: its tasks have no end; set select.limit")
    return [
        {"id": f"{dataset}/{task.key[:32]}", "env": options["env"], "data": task.data.model_dump(mode="json")}
        for task in itertools.islice(view, limit)
    ]
