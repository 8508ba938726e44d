"""Keys and tokens for tools: named in the configuration, kept in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from string import Template


def expand(values: Mapping[str, str]) -> dict[str, str]:
    """``${NAME}`` in each value replaced from the environment. Raises ``ValueError`` naming what is not set."""
    try:
        return {key: Template(value).substitute(os.environ) for key, value in values.items()}
    except KeyError as error:
        raise ValueError(f"${{{error.args[0]}}} is not set in the environment") from None
    except ValueError as error:
        raise ValueError(f"write ${{NAME}} for a variable, $$ for a dollar sign ({error})") from None
