"""Small valid trajectories, groups and tasks for tests of the wire and the bookkeeping."""

from __future__ import annotations

import socket

import numpy as np

from configs.schema import Config
from protocol.messages import Lease, Task
from protocol.trajectory import NO_VERSION, Group, Trajectory


def trajectory(size: int = 6, version: int = 0, seed: int = 0, task_id: str = "t") -> Trajectory:
    """A prompt of 2 tokens, then action tokens except for one tool token before the last."""
    rng = np.random.default_rng(seed)
    mask = np.ones(size, "u1")
    mask[:2] = 0
    mask[-2] = 0
    rewards = np.zeros(size, "<f4")
    rewards[-1] = rng.random()
    return Trajectory(
        token_ids=rng.integers(0, 1000, size).astype("<i4"),
        action_mask=mask,
        behaviour_logprobs=(-rng.random(size) * mask).astype("<f4"),
        versions=np.where(mask, version, NO_VERSION).astype("<i4"),
        rewards=rewards,
        turns=np.array([[2, size - 2], [size - 1, size]], "<i4"),
        terminated=bool(seed % 2),
        facts={"task_id": task_id, "dataset": "toy", "seed": seed, "metrics": {"em": 1.0}},
    )


def group(lease_id: str, task_id: str, size: int = 2, version: int = 0) -> Group:
    return Group(lease_id, task_id, [trajectory(6 + i, version, i, task_id) for i in range(size)])


def group_of(lease: Lease, version: int = 0) -> Group:
    made = group(lease.lease_id, lease.task.task_id, lease.group_size, version)
    for member in made.trajectories:
        member.facts["dataset"] = lease.task.dataset
    return made


def tasks(count: int) -> list[Task]:
    return [Task(task_id=f"q{i}", dataset="toy", payload={"n": i}) for i in range(count)]


def config(groups: int = 2, staleness: int = 1, heartbeat_s: float = 1.0, port: int = 5600) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": 1_000_000},
            "learner": {"groups": groups, "mini_batches": 1, "group_size": 2},
            "staleness": staleness,
            "actor": {"heartbeat_s": heartbeat_s},
            "gateway": {"port": port, "lease_timeout_s": 100},
        }
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def assert_same(left: Group, right: Group) -> None:
    assert (left.lease_id, left.task_id) == (right.lease_id, right.task_id)
    assert len(left.trajectories) == len(right.trajectories)
    for a, b in zip(left.trajectories, right.trajectories, strict=True):
        for name in ("token_ids", "action_mask", "behaviour_logprobs", "versions", "rewards", "turns"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype
        assert (a.terminated, a.facts) == (b.terminated, b.facts)
