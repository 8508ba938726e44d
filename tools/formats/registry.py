"""The formats by name, and which of them a chat template asks for."""

from __future__ import annotations

from tools.formats.base import ToolFormat
from tools.formats.hermes import Hermes
from tools.formats.llama3 import Llama3
from tools.formats.mistral import Mistral
from tools.formats.pythonic import Pythonic
from tools.formats.qwen_xml import QwenXml

#: A further format is a module beside these and a place in this tuple (and in ``model.tool_format``).
FORMATS: dict[str, ToolFormat] = {f.name: f for f in (Hermes(), QwenXml(), Llama3(), Mistral(), Pythonic())}
HERMES = FORMATS["hermes"]

#: Text of a chat template → whose calls it shows. The first that is found decides.
_FOREIGN = {
    "<arg_key>": "GLM",
    "tool▁call": "DeepSeek",
    "<|channel|>": "gpt-oss",
    "<|tool_call>call:": "Gemma 4",
    "<|START_ACTION|>": "Cohere Command",
    "<start_function_call>": "FunctionGemma",
    "<minimax:tool_call>": "MiniMax",
    "<|tool_calls_section_begin|>": "Kimi",
}
#: Text of a chat template → its format. The first that is found decides.
_MARKS = {
    "[TOOL_CALLS]": "mistral",
    "<function=": "qwen_xml",
    "<tool_call>": "hermes",
    "<|tool_call_start|>": "pythonic",
    "<|tool_list_start|>": "pythonic",
    "[func_name1(": "pythonic",
    "<|python_tag|>": "llama3",
    '"parameters": dictionary': "llama3",
}


class UnknownFormat(ValueError):
    """A chat template shows tool calls of a form that there is no parser for."""


def detect_format(template: str) -> ToolFormat | None:
    """The format in which a Jinja chat template shows tool calls; None where it shows none.

    Raises ``UnknownFormat``.
    """
    for mark, family in _FOREIGN.items():
        if mark in template:
            raise UnknownFormat(f"writes tool calls as {family} does, which is not supported")
    return next((FORMATS[name] for mark, name in _MARKS.items() if mark in template), None)
