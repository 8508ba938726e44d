"""Things of the user's that the configuration names by their import path."""

from __future__ import annotations

import importlib
from typing import Any


def import_named(path: str, what: str, kind: str) -> Any:
    """What ``module:Name`` names; None where the module has nothing of that name.

    what: names the option, for messages to a person. kind: of thing, with an example.
    Raises ``ValueError`` that says what to change.
    """
    module_name, separator, name = path.partition(":")
    if not (separator and module_name and name):
        raise ValueError(f"{what}: write module:{kind}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only the module that was asked for: a missing import *inside* it is another fault, and shown as such.
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise ValueError(f"{what}: no module {error.name!r}; is its folder on PYTHONPATH?") from None
        raise
    return getattr(module, name, None)
