"""Tool-calling sets: a conversation, the functions on offer, and the calls that are expected.

Two forms: OpenAI's (``messages``, ``tools``, ``expected_calls``), and that of the Berkeley Function-Calling
Leaderboard's own files (``question``, ``function``, with ``ground_truth`` in the row or in a second file).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from envs.call_matching import reference_arguments
from envs.data.loading import BadRow, BadRows, Text, load, validate
from envs.data.rows import read_rows
from envs.data.source import Source


class CallSource(Source):
    """A source of conversations with expected calls."""

    answers: str | None = None
    """BFCL's file of ``possible_answer``, whose ``ground_truth`` is found by a row's ``id``."""


@dataclass(frozen=True)
class Conversation:
    """messages: as for a chat template. tools: OpenAI function schemas. expected: [{"name", "possible_args":
    {argument: [accepted values]}}], to be made in one turn, in any order; empty where no call is right."""

    id: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    expected: list[dict[str, Any]]


@lru_cache(maxsize=32)
def load_conversations(source: CallSource, bad_rows: BadRows) -> tuple[Conversation, ...]:
    """All conversations of a source, in order. Raises ``ValueError``; see ``envs.data.loading``.

    Checked besides the form: schemas are JSON Schema, and each expected call fits that of its function.
    """
    answers = _read_answers(source.answers) if source.answers else {}

    def convert(row: dict[str, Any], number: int) -> Conversation:
        if "function" in row:
            row = _from_bfcl(row, answers)
        fields = validate(_ConversationRow, row, "a conversation")
        tools = [tool.model_dump() for tool in fields.tools]
        expected = [call.model_dump(exclude={"arguments"}) for call in fields.expected_calls]
        _check_calls({tool.function.name: tool.function.parameters for tool in fields.tools}, expected, len(tools))
        return Conversation(
            fields.id or str(number), [message.model_dump() for message in fields.messages], tools, expected
        )

    return load(source, read_rows(source), convert, bad_rows)


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


#: Parquet cannot hold objects that differ from row to row, so files of that kind have them as JSON strings.
_Json = BeforeValidator(_parsed)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


class _Function(BaseModel):
    name: Annotated[Text, Field(max_length=64)]
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _ExpectedCall(BaseModel):
    name: Text
    possible_args: dict[str, Annotated[list[Any], Field(min_length=1)]]
    arguments: Annotated[dict[str, Any], _Json] = {}

    @model_validator(mode="before")
    @classmethod
    def _exact_arguments(cls, call: Any) -> Any:
        """``arguments`` instead of ``possible_args``: one accepted value each."""
        if isinstance(call, dict) and "possible_args" not in call and "arguments" in call:
            return call | {"possible_args": _exact(_parsed(call["arguments"]))}
        return call


class _ConversationRow(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str = ""
    messages: Annotated[list[_Message], Field(min_length=1), _Json]
    tools: Annotated[list[_Tool], _Json]
    expected_calls: Annotated[list[_ExpectedCall], _Json]


def _exact(value: Any) -> Any:
    """A value as the only alternative: inside objects, too, each value becomes a list of one."""
    if isinstance(value, dict):
        return {name: [_exact(item)] for name, item in value.items()}
    return [_exact(item) for item in value] if isinstance(value, list) else value


def _check_calls(schemas: dict[str, dict[str, Any]], expected: list[dict[str, Any]], tools: int) -> None:
    if len(schemas) < tools:
        raise BadRow("two of its tools have one name")
    validators = {}
    for name, schema in schemas.items():
        try:
            validators[name] = _validator(json.dumps(schema))
        except SchemaError as error:
            raise BadRow(f"parameters of {name}: not a JSON schema ({error.message[:200]})") from None
    for call in expected:
        name = call["name"]
        if name not in schemas:
            raise BadRow(f"it expects a call of {name}, which is not one of its tools")
        reference = reference_arguments(call["possible_args"], schemas[name].get("required", ()))
        try:
            errors = list(validators[name].iter_errors(reference))
        except Unresolvable as error:
            raise BadRow(f"parameters of {name}: {error}") from None
        if errors:
            raise BadRow(f"the expected call of {name} does not fit its schema ({errors[0].message[:200]})")


@lru_cache(maxsize=4096)  # large sets offer the same functions again and again, and a check takes a millisecond
def _validator(schema: str) -> Validator:
    """Of a schema as JSON. With an empty registry, a reference to somewhere else is an error, not a download."""
    parsed = json.loads(schema)
    validator_for(parsed).check_schema(parsed)
    return validator_for(parsed)(parsed, registry=Registry())


#: BFCL's names of types, which are Python's, in JSON Schema; what may be anything has no type.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def _from_bfcl(row: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    try:
        turns = row["question"]
        truth = row["ground_truth"] if "ground_truth" in row else answers[row["id"]]
        expected = [{"name": _name(n), "possible_args": args} for call in truth for n, args in call.items()]
        tools = [{"function": _openai(function)} for function in row["function"]]
        if len(turns) != 1:
            raise BadRow(f"it has {len(turns)} turns of the user; sets with one are supported")
        return {"id": row["id"], "messages": turns[0], "tools": tools, "expected_calls": expected}
    except KeyError as error:
        raise BadRow(f"no {error} here or in the file of answers (env.args.files: answers)") from None
    except (TypeError, AttributeError) as error:
        raise BadRow(f"not in BFCL's form ({error})") from None


def _openai(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "name": _name(function["name"]), "parameters": _schema(function["parameters"])}


def _schema(node: Any) -> Any:
    if isinstance(node, list):
        return [_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _schema(value) for key, value in node.items()}
    if isinstance(kind := node.get("type"), str) and kind in _TYPES:
        node["type"] = _TYPES[kind]
        if node["type"] is None:
            del node["type"]
    return node


def _name(name: str) -> str:
    """OpenAI's names have no dots; the leaderboard writes them so for models with native calls."""
    return name.replace(".", "_")


def _read_answers(path: str) -> dict[str, Any]:
    answers = {}
    for where, row in read_rows(Source(path=path)):
        if isinstance(row, BadRow) or not {"id", "ground_truth"} <= row.keys():
            raise ValueError(f"{where}: want a line with id and ground_truth")
        answers[row["id"]] = row["ground_truth"]
    return answers
