"""The tasks of one evaluation: each attempted once, in any order, collected in theirs."""

from __future__ import annotations

import logging
from collections import Counter, deque

import numpy as np

from learner.gateway.ledger import MAX_ATTEMPTS
from protocol.messages import Task
from protocol.trajectory import NO_VERSION, TOKEN_FIELDS, Trajectory

log = logging.getLogger("rollway.dispatch")


class EvalQueue:
    """Nothing of it is durable: a learner that restarts evaluates again."""

    def __init__(self, tasks: list[Task], min_version: int) -> None:
        self.tasks = tasks
        self.min_version = min_version
        self.todo = deque(range(len(tasks)))
        self._failures: Counter[int] = Counter()
        self._results: dict[int, Trajectory] = {}

    def __str__(self) -> str:
        return f"{len(self._results)} of {len(self.tasks)} evaluation episodes done"

    @property
    def progress(self) -> tuple[int, int]:
        """(tasks that have their episode, all tasks)."""
        return len(self._results), len(self.tasks)

    def retry(self, index: int) -> None:
        self.todo.appendleft(index)

    def done(self, index: int, episode: Trajectory) -> None:
        """Keep an episode; one that older weights sampled is run again."""
        if NO_VERSION < episode.oldest_version < self.min_version:
            self.retry(index)
        else:
            self._results[index] = episode

    def failed(self, index: int) -> None:
        """An attempt failed. After ``MAX_ATTEMPTS`` the task is scored as one without an answer."""
        self._failures[index] += 1
        if self._failures[index] < MAX_ATTEMPTS:
            self.retry(index)
            return
        task = self.tasks[index]
        log.error("evaluation task %s failed %d times and counts as not answered", task.task_id, MAX_ATTEMPTS)
        self._results[index] = _unanswered(task)

    def results(self) -> list[Trajectory] | None:
        """Episodes in the order of the tasks; None until all are there."""
        if len(self._results) < len(self.tasks):
            return None
        return [self._results[index] for index in range(len(self.tasks))]


def _unanswered(task: Task) -> Trajectory:
    facts = {"task_id": task.task_id, "dataset": task.dataset, "finish": "failed", "metrics": {}, "tool_calls": []}
    arrays = {name: np.zeros(0, dtype) for name, dtype in TOKEN_FIELDS.items()}
    return Trajectory(**arrays, turns=np.zeros((0, 2), "<i4"), terminated=False, facts=facts)
