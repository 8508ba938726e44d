"""Where the rows of a data set are: the ``files`` and ``bad_rows`` of ``env.args``."""

from __future__ import annotations

from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from envs.data.loading import BadRows, explain


class Source(BaseModel):
    """The rows of one data set: a local ``path`` or a ``hub`` name. A bare string stands for a path."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    path: str | None = None
    """A JSON list, JSON lines or Parquet; a pattern such as data/train-*.parquet names several files, read in order."""
    hub: str | None = None
    """Name on the Hugging Face hub, or a folder that the ``datasets`` library can load."""
    name: str | None = None
    """Configuration of the hub data set, such as ``main``."""
    split: str | None = None
    """Split of the hub data set, such as ``train`` or ``validation[:500]``."""
    revision: str | None = None
    """Commit or tag of the hub data set; without it, whatever is newest there."""

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("give either path or hub")
        if self.hub is None and (self.name or self.split or self.revision):
            raise ValueError("name, split and revision are for hub")
        if self.hub is not None and self.split is None:
            raise ValueError("hub needs a split, such as train")
        return self

    def __str__(self) -> str:
        return self.path or f"{self.hub}{f'/{self.name}' if self.name else ''}[{self.split}]"


SourceT = TypeVar("SourceT", bound=Source)


class Catalogue(Generic[SourceT]):
    """The data sets that a configuration names, by split. Making one opens nothing."""

    def __init__(self, files: Any, source_type: type[SourceT], bad_rows: Any):
        """files: {"train" | "eval": {data set: source}}; bad_rows: "fatal" | "skip". Raises ``ValueError``."""
        self._files = _option("files", dict[Literal["train", "eval"], dict[str, source_type]], files)
        self.bad_rows: BadRows = _option("bad_rows", BadRows, bad_rows)

    def source(self, split: str, dataset: str) -> SourceT:
        """Raises ``ValueError`` where the configuration names none."""
        try:
            return self._files[split][dataset]
        except KeyError:
            raise ValueError(f"env.args.files has no {split} file for the data set {dataset!r}") from None

    def sources(self) -> tuple[SourceT, ...]:
        """All of them, each once, in the order of the configuration."""
        return tuple(dict.fromkeys(source for sets in self._files.values() for source in sets.values()))


def _option(name: str, kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"env.args.{name}: {explain(error)}") from None
