"""The episodes of a run folder and the words for their tokens."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from learner.run.folder import RunFolder, RunFolderError

Episode = dict[str, Any]


class Library:
    """episodes: records of ``episodes.jsonl``, in the order in which they were written."""

    def __init__(self, path: Path, episodes: list[Episode]):
        self.path = path
        self.episodes = episodes

    @classmethod
    def read(cls, path: Path) -> Library:
        """Raises ``RunFolderError`` with what to do: no run there, none recorded, a broken file."""
        if not (path / "config.yaml").is_file():
            raise RunFolderError(f"{path} holds no run (no config.yaml): give the folder that run.dir named")
        episodes = RunFolder(path).read_episodes()
        if not episodes:
            raise RunFolderError(
                f"{path} has no recorded episodes: they come with the first step, "
                "unless log.trajectories is 0 or an earlier release made the run"
            )
        return cls(path, episodes)

    def group(self, episode: Episode) -> list[Episode]:
        """All members of its group, in order; the episode itself where it was evaluated alone."""
        key = (episode.get("step"), episode.get("kind"), episode.get("group"))
        return [e for e in self.episodes if (e.get("step"), e.get("kind"), e.get("group")) == key]

    def token(self, token_id: int) -> str:
        """Text of one token; its id where the run's tokenizer is not at hand."""
        if self._tokenizer is None:
            return f"#{token_id}"
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    @cached_property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        config = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8")) or {}
        model = str((config.get("model") or {}).get("path") or "")
        for folder in (self.path / "export", Path(model)):
            if (file := folder / "tokenizer.json").is_file():
                return Tokenizer.from_file(str(file))
        return None
