"""What an agent asks of ``/v1/chat/completions``: checked, and in the form that chat templates take.

A field that changes what is sampled, and that Rollway does not carry out, is refused. Those that
only advise are ignored, and the log says so.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actors.openai.errors import ApiError

Message = dict[str, Any]

#: Fields with no bearing on what the policy does, or that the run's own configuration decides.
IGNORED = frozenset(
    {
        "metadata", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "safety_identifier", "seed",
        "service_tier", "store", "temperature", "top_p", "user", "verbosity",
    }
)  # fmt: skip
#: Field → the only values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "stop": ([], ""),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
    "web_search_options": (),
}
_TAKEN = {"messages", "model", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """messages, tools: as templates take them. may_call: the agent looks for tool calls in the answer. max_tokens: of the answer, None for no limit of the agent's own.

    ignored: names of the fields that were given and have no effect.
    """

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    may_call: bool
    max_tokens: int | None
    stream: bool
    with_usage: bool
    ignored: frozenset[str]


def read_request(body: Any) -> ChatRequest:
    """Raises ``ApiError`` that names the field."""
    if not isinstance(body, dict):
        raise ApiError("the request is not a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in _NEUTRAL and value not in _NEUTRAL[name]:
            raise ApiError(f"{name}={_short(value)} is not supported here: leave it out", name)
        if name not in _NEUTRAL and name not in IGNORED and name not in _TAKEN:
            raise ApiError(f"{name} is not a parameter of this endpoint: leave it out", name)
    limits = [_positive(given, name) for name in ("max_completion_tokens", "max_tokens") if name in given]
    options = given.get("stream_options", {})
    return ChatRequest(
        model=str(given.get("model", "policy")),
        messages=_messages(given.get("messages")),
        tools=_tools(given.get("tools", [])),
        may_call=given.get("tool_choice") != "none",
        max_tokens=min(limits, default=None),
        stream=given.get("stream") is True,
        with_usage=isinstance(options, dict) and options.get("include_usage") is True,
        ignored=IGNORED.intersection(given),
    )


def same(one: Message, other: Message) -> bool:
    """Whether two messages say the same.

    Of a turn of the policy its speech counts, white space around it aside, and its calls: not what it
    thought, which many agents leave out of the history.
    """
    if one["role"] != "assistant" or other["role"] != "assistant":
        return one == other
    return (one["content"].strip(), one.get("tool_calls")) == (other["content"].strip(), other.get("tool_calls"))


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ApiError("messages is not a list of at least one message", "messages")
    names: dict[str, str] = {}  # id of a call → its tool: some templates want the name with the answer
    messages = [_message(entry, f"messages[{i}]", names) for i, entry in enumerate(value)]
    if messages[-1]["role"] == "assistant":
        raise ApiError("the last message is the assistant's: continuing a message is not supported", "messages")
    return messages


def _message(entry: Any, where: str, names: dict[str, str]) -> Message:
    if not isinstance(entry, dict) or (role := _ROLES.get(str(entry.get("role")))) is None:
        raise ApiError(f"{where}: want an object whose role is one of {', '.join(_ROLES)}", "messages")
    message: Message = {"role": role, "content": _text(entry.get("content"), where)}
    if role == "assistant":
        thought = entry.get("reasoning_content") or entry.get("reasoning")
        if isinstance(thought, str):
            message["reasoning_content"] = thought
        if entry.get("tool_calls"):
            message["tool_calls"] = [_call(call, where) for call in entry["tool_calls"]]
            names.update({call["id"]: call["function"]["name"] for call in message["tool_calls"]})
    elif role == "tool":
        message["tool_call_id"] = str(entry.get("tool_call_id", ""))
        message["name"] = str(entry.get("name") or names.get(message["tool_call_id"], ""))
    return message


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    raise ApiError(f"{where}: content is neither text nor a list of text parts", "messages")


def _call(call: Any, where: str) -> dict[str, Any]:
    """With arguments as an object, where they are one: templates write them as JSON themselves."""
    try:
        function, arguments = call["function"], call["function"].get("arguments") or "{}"
        name, identity = str(function["name"]), str(call.get("id", ""))
    except (TypeError, KeyError, AttributeError):
        raise ApiError(f"{where}: a tool call without function.name", "messages") from None
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # where another model wrote it, the template shows it as it is
            arguments = json.loads(arguments)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tools(value: Any) -> list[dict[str, Any]]:
    """With the fields that templates may show, and no more: clients add some of their own."""
    tools = []
    for i, tool in enumerate(value if isinstance(value, list) else [value]):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(f'tools[{i}]: want {{"type": "function", "function": {{"name": …}}}}', "tools")
        known = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
        parameters = known.setdefault("parameters", {"type": "object", "properties": {}})
        if not isinstance(parameters, dict):
            raise ApiError(f"tools[{i}].function.parameters is not a JSON schema", "tools")
        tools.append({"type": "function", "function": known})
    return tools


def _positive(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ApiError(f"{name}={_short(value)} is not a positive integer", name)
    return value


def _short(value: Any) -> str:
    return repr(value)[:80]
