"""``AnswerEnv``: the loop that most tool-calling tasks share, so that a new one is only its hooks.

A turn either calls tools (in the model's format), or ends the episode with
``<answer>…</answer>``. The rest is here: running the calls, telling the model about
its mistakes, the format term of the reward, the outcome of an episode that was cut.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from envs.base import Message, StepResult, ToolEnv
from tools.base import ToolResult
from tools.formats.thinking import without_thinking
from tools.runner import run_calls

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
#: Faults of what the model wrote; the others are the tool's own.
_WRITING_FAULTS = ("malformed", "unknown_tool", "bad_arguments")
_NUDGE = "Call a tool, or give the final answer as <answer>your answer</answer>."
_CUT = "Your turn reached the length limit. Be brief. " + _NUDGE


def parse_answer(text: str) -> str | None:
    """The answer of a turn, or None unless it has exactly one, closed and not empty."""
    found = _ANSWER.findall(text)
    well_formed = len(found) == 1 and text.count("<answer>") == text.count("</answer>") == 1
    return found[0].strip() or None if well_formed else None


class AnswerEnv(ToolEnv):
    """Hooks: ``start`` and ``judge_answer`` (required), ``process_reward``.

    Outcome reward as in Agent-R1: metric ``em`` if the format is fully right, else
    ``format_weight`` · (format − 1), with format the mean of "the answer is well formed"
    and "every tool call could be read and fitted its tool".
    """

    format_weight: float = 1.0

    @abstractmethod
    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        """The first messages; also the place to set ``self.tools`` where they differ by task."""

    @abstractmethod
    def judge_answer(self, answer: str) -> dict[str, float]:
        """Metrics of the answer (empty if there is none). ``em`` in [0, 1] is the outcome."""

    def process_reward(self, results: Sequence[ToolResult]) -> float:
        """Reward of a turn by what its calls brought to light."""
        return 0.0

    async def reset(self, task: dict[str, Any], seed: int) -> list[Message]:
        self._calls_fit = True
        return self.start(task, seed)

    async def step(self, text: str, finish: str) -> StepResult:
        cut = finish == "length"
        if calls := self.tool_format.parse(text, self.tools, cut=cut):
            results = await run_calls(self.tools, calls)
            self._calls_fit &= all(result.fault not in _WRITING_FAULTS for result in results)
            messages = [result.message() for result in results]
            return StepResult(messages, reward=self.process_reward(results), tool_results=results)
        if (answer := parse_answer(without_thinking(text))) is not None:
            return self._outcome(answer)
        return StepResult([{"role": "user", "content": _CUT if cut else _NUDGE}])

    async def truncate(self) -> StepResult:
        return self._outcome(None)

    def _outcome(self, answer: str | None) -> StepResult:
        metrics = self.judge_answer(answer or "")
        format_score = ((answer is not None) + self._calls_fit) / 2
        outcome = metrics["em"] if format_score == 1 else self.format_weight * (format_score - 1)
        info = {"metrics": {**metrics, "format": format_score}, "outcome_reward": outcome}
        return StepResult(done=True, info=info)
