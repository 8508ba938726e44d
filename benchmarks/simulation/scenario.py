"""What one seed stands for: the shape of a run and the faults that it meets."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from configs.schema import Config
from protocol.messages import Task

HEARTBEAT_S = 1.0
LEASE_TIMEOUT_S = 12.0
#: Longest silence of the learner that an actor bears.
PATIENCE_S = 10.0
#: With everybody healthy, all that was under way is used up within this time, or the run counts as stuck.
RECOVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rates are probabilities a message or a call; 0 where this seed does without that fault.

    learner_fuse, actor_fuse: mean number of steps (ledger statements and messages) between
    two crashes; 0 for none. events: kinds of fault that the schedule draws from, now and then.
    """

    staleness: int
    groups: int
    group_size: int
    tasks: int
    actors: int
    leases: int
    servers: int
    checkpoint_every: int
    eval_every: int
    chaos_s: float
    lost: float
    doubled: float
    late: float
    failing: float
    hanging: float
    push_failing: float
    learner_fuse: int
    actor_fuse: int
    power_cut: float
    events: tuple[str, ...]

    @property
    def config(self) -> Config:
        return _config(self.staleness, self.groups, self.group_size, self.leases)

    @property
    def task_list(self) -> list[Task]:
        return _tasks(self.tasks)


#: Faults that come at a random moment; see ``faults.Faults``.
EVENTS = (
    "actor_killed", "actor_leaves", "actor_cut_off", "actor_clock_jumps",
    "learner_killed", "learner_stops", "learner_clock_jumps", "server_down",
)  # fmt: skip


def draw(rng: random.Random) -> Scenario:
    """Every seed has another mixture: what all faults together hide, a few of them show."""

    def rate(most: float) -> float:
        return rng.uniform(0.0, most) if rng.random() < 0.6 else 0.0

    return Scenario(
        staleness=rng.choice([0, 0, 1, 1, 2]),
        groups=rng.randint(1, 3),
        group_size=rng.choice([2, 2, 3]),
        tasks=rng.randint(3, 12),
        actors=rng.randint(1, 3),
        leases=rng.randint(1, 4),
        servers=rng.randint(1, 2),
        checkpoint_every=rng.randint(1, 4),
        eval_every=rng.choice([0, 2, 5]),
        chaos_s=rng.uniform(8.0, 20.0),
        lost=rate(0.2),
        doubled=rate(0.2),
        late=rate(0.2),
        failing=rate(0.2),
        hanging=rate(0.06),
        push_failing=rate(0.3),
        learner_fuse=rng.choice([0, 60, 200]),
        actor_fuse=rng.choice([0, 40, 150]),
        power_cut=rng.choice([0.0, 0.0, 0.5]),
        events=tuple(kind for kind in EVENTS if rng.random() < 0.5),
    )


@lru_cache(maxsize=256)
def _config(staleness: int, groups: int, group_size: int, leases: int) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": 1_000_000},
            "staleness": staleness,
            "learner": {"groups": groups, "mini_batches": 1, "group_size": group_size},
            "actor": {
                "heartbeat_s": HEARTBEAT_S,
                "leases": leases,
                "connect_timeout_s": PATIENCE_S,
                "episode_retries": 1,
            },
            "gateway": {"lease_timeout_s": LEASE_TIMEOUT_S},
        }
    )


@lru_cache(maxsize=64)
def _tasks(count: int) -> list[Task]:
    return [Task(task_id=f"q{i}", dataset="sim", payload={}) for i in range(count)]
