"""YAML file + dotted overrides → ``Config``; whatever is wrong is one clear line."""

from __future__ import annotations

import difflib
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from configs.schema import Config

#: What ``python run.py`` runs.
DEFAULT_PRESET = Path(__file__).parent / "quickstart.yaml"


class ConfigError(Exception):
    """The message names the field and what to do."""


def load_config(path: Path | str | None = None, overrides: list[str] = ()) -> Config:
    """Read a preset (the default one without ``path``), apply ``a.b.c=value`` overrides, validate.

    Values of overrides are YAML: ``learner.optimizer.lr=1e-6``, ``env.train=[hotpot]``.
    Raises ConfigError.
    """
    path = Path(path) if path else DEFAULT_PRESET
    data = _read_yaml(path)
    for override in overrides:
        _apply(data, override)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        presets = ", ".join(sorted(f"configs/{p.name}" for p in DEFAULT_PRESET.parent.glob("*.yaml")))
        raise ConfigError(f"--config {path}: no such file; presets are {presets}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path}: want a mapping of sections, got a {type(data).__name__}")
    return data


def _number(text: str) -> Any:
    """YAML 1.1 reads ``1e-6`` as a string; people mean the number."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override value {text!r}: not valid YAML: {' '.join(str(error).split())}") from None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _apply(data: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"{override!r}: want section.field=value, e.g. learner.optimizer.lr=1e-6")
    node = data
    for depth, key in enumerate(keys[:-1], start=1):
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{override!r}: {'.'.join(keys[:depth])} is a value, not a section")
        node = child
    node[keys[-1]] = _number(text)


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        where = ".".join(_path(item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown option{_suggest(where, item['loc'])}")
        elif item["type"] == "union_tag_invalid":
            got = item["input"].get("type") if isinstance(item["input"], dict) else item["input"]
            lines.append(f"{where}.type: must be one of {item['ctx']['expected_tags']} (got {got!r})")
        elif not where:
            lines.append(message)
        elif isinstance(item["input"], dict | BaseModel):
            lines.append(f"{where}: {message}")
        else:
            lines.append(f"{where}: {message} (got {item['input']!r})")
    return "; ".join(lines)


def _suggest(where: str, location: tuple[int | str, ...]) -> str:
    """Names of options are compared by their last part first: people misplace a field more often than they misspell it."""
    leaves: dict[str, list[str]] = {}
    for name in _field_names(Config):
        leaves.setdefault(name.rsplit(".", 1)[-1], []).append(name)
    close = difflib.get_close_matches(str(location[-1]), leaves, n=1, cutoff=0.6)
    if not close:
        return "; `python run.py --dry-run` prints all of them"
    section = str(location[0])
    candidates = leaves[close[0]]
    if where in candidates:
        return f" with this {where.rpartition('.')[0]}.type; it belongs to another one"
    return f"; did you mean {next((c for c in candidates if c.startswith(section)), candidates[0])}?"


def _path(location: tuple[int | str, ...]) -> list[str]:
    """The names that a person wrote: pydantic's location without the members of unions that were chosen by ``type``."""
    models, path = [Config], []
    for part in location:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if (
            not fields
            and path
            and any(model.model_fields["type"].default == part for model in models if _tagged(model))
        ):
            continue
        path.append(str(part))
        models = [model for field in fields for model in _members(field.annotation)]
    return path


def _field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        for member in _members(field.annotation):
            names += _field_names(member, f"{prefix}{name}.")
    return names


def _members(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field may hold: itself, or those of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [model for argument in get_args(annotation) for model in _members(argument)]
    return []


def _tagged(model: type[BaseModel]) -> bool:
    return "type" in model.model_fields
