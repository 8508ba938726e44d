"""How models write tool calls: one module a format, chosen by name or by what a chat template shows."""

from __future__ import annotations

from tools.formats.base import ToolFormat
from tools.formats.registry import FORMATS, HERMES, UnknownFormat, detect_format

__all__ = ["FORMATS", "HERMES", "ToolFormat", "UnknownFormat", "detect_format"]
