"""The measured processes, from outside."""

from __future__ import annotations

import json
import os
import select
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
#: Time for one answer: imports and a model, or one update, seconds.
ANSWER_S = 1800.0
_END_S = 5.0


class ChildFailed(RuntimeError):
    """A measured process did not answer; the text has its last words."""


class Child:
    """One arm. ``costs``: what it answered in the rounds that count."""

    def __init__(
        self, stack: ExitStack, python: str, module: str, words: list[str], threads: int, folder: Path
    ) -> None:
        self._name = f"{module} {words[0]}"
        self._log = folder / f"{module.rpartition('.')[2]}-{Path(words[0]).name}.log"
        self.costs: list[dict[str, float]] = []
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", module, *words, str(threads)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
                env=os.environ | quiet | {"OMP_NUM_THREADS": str(threads)},
            )  # fmt: skip
        stack.callback(self._end)

    def update(self, order: dict[str, int]) -> dict[str, float]:
        """``cpu_s``, ``clock_s`` and ``peak_mib`` of one update. Raises ``ChildFailed``."""
        with suppress(BrokenPipeError):  # it has ended: its last words tell why
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises ``ChildFailed``."""
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            words = " | ".join(self._log.read_text(errors="replace").split("\n")[-4:])
            reason = "ended" if ready else f"did not answer within {ANSWER_S:g} s"
            raise ChildFailed(f"{self._name} {reason}: {words.strip(' |') or 'no word'}")
        return json.loads(line)

    def middle(self, key: str) -> float:
        return median(cost[key] for cost in self.costs)

    def _end(self) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
