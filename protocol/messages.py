"""Every message between the learner's gateway, the actors and the dashboards.

State, not deltas: a heartbeat carries all that an actor holds and all that it could
hold, so a lost or doubled message never makes a counter leak. Headers are validated
by pydantic on receipt; arrays travel as raw frames beside them (see ``codec``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Raised whenever a change would make an old peer misread a new one.
PROTOCOL_VERSION = 2

Id = Annotated[str, Field(min_length=1, max_length=128)]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Task(Message):
    """One thing to attempt. ``payload`` is the environment's own and opaque to the rest.

    ``env`` names one of the environments in ``Welcome.config["envs"]`` ({name: {"path", "args"}}):
    "main" is the run's own, baselines have others.
    """

    task_id: Id
    env: str = Field(default="main", max_length=64)
    dataset: str = Field(max_length=64)
    payload: dict[str, Any]


class Lease(Message):
    """The right to attempt one task ``group_size`` times. It dies with its holder's heartbeat.

    ``purpose`` "eval" samples greedily (or with ``eval`` settings) and is never trained on.
    ``min_version``: the sampling server must have at least this policy version.
    """

    lease_id: Id
    task: Task
    group_size: int = Field(ge=1, le=4096)
    seed: int = Field(ge=0)
    purpose: Literal["train", "eval"] = "train"
    min_version: int = 0


# ── actor → gateway ──────────────────────────────────────────────────────────


class Hello(Message):
    """First message of an actor; answered by ``Welcome`` or ``Reject``."""

    type: Literal["hello"] = "hello"
    protocol: int
    actor_id: Id
    host: str = Field(max_length=255)
    pid: int


class Heartbeat(Message):
    """Sent every ``heartbeat_s`` from a thread that work cannot starve, and whenever credit changes.

    ``capacity`` is how many training leases the actor could hold at once; an evaluation
    lease, a single episode, takes 1/group_size of one, so more leases than ``capacity``
    may be held during an evaluation. ``held`` are those it holds, up to their
    acknowledgement. ``oldest`` gives, for each lease that has sampled anything, the lowest
    policy version among its tokens so far: what can no longer be used is cancelled.
    """

    type: Literal["heartbeat"] = "heartbeat"
    actor_id: Id
    capacity: int = Field(ge=0, le=65536)
    held: list[Id] = Field(max_length=65536)
    oldest: dict[Id, int] = Field(default_factory=dict, max_length=65536)
    stats: dict[str, Any] = Field(default_factory=dict)


class GroupDone(Message):
    """A finished group; its arrays follow as raw frames. Resent until acknowledged.

    ``segments``: for each trajectory where its segments after the first begin; empty where none has any.
    """

    type: Literal["group_done"] = "group_done"
    actor_id: Id
    lease_id: Id
    task_id: Id
    lengths: list[int] = Field(max_length=4096)
    turn_counts: list[int] = Field(max_length=4096)
    terminated: list[bool] = Field(max_length=4096)
    facts: list[dict[str, Any]] = Field(max_length=4096)
    segments: list[list[int]] = Field(default_factory=list, max_length=4096)


class GroupFailed(Message):
    """The group cannot be completed; its task is issued again."""

    type: Literal["group_failed"] = "group_failed"
    actor_id: Id
    lease_id: Id
    reason: str = Field(max_length=2000)


class Goodbye(Message):
    """An actor leaves on its own will; all its leases are handed back."""

    type: Literal["goodbye"] = "goodbye"
    actor_id: Id


# ── dashboard → gateway ──────────────────────────────────────────────────────


class StatusRequest(Message):
    """Answered by one ``Status``."""

    type: Literal["status_request"] = "status_request"
    protocol: int
    since_step: int = 0


# ── gateway → actor, dashboard ───────────────────────────────────────────────


class Welcome(Message):
    """The learner's answer to ``Hello``: the actor's share of the resolved configuration.

    ``run_id`` stays the same when a learner resumes its run, and only then.
    """

    type: Literal["welcome"] = "welcome"
    protocol: int
    run_id: Id
    config: dict[str, Any]
    servers: list[str]
    version: int


class Leases(Message):
    type: Literal["leases"] = "leases"
    leases: list[Lease]


class Ack(Message):
    """The group is safe in the ledger (or was known already): the actor may forget it."""

    type: Literal["ack"] = "ack"
    lease_id: Id


class Cancel(Message):
    """These leases are void (too stale, expired, run over): stop and forget them."""

    type: Literal["cancel"] = "cancel"
    lease_ids: list[Id]


class Pong(Message):
    """Answer to a heartbeat, and news of a change. ``servers`` lists those that have the current weights."""

    type: Literal["pong"] = "pong"
    version: int
    servers: list[str]


class Unknown(Message):
    """Answer to an actor that the learner does not know (it restarted, or gave the actor up):
    say ``Hello`` again."""

    type: Literal["unknown"] = "unknown"


class Status(Message):
    """A snapshot for dashboards: plain values only."""

    type: Literal["status"] = "status"
    snapshot: dict[str, Any]


class Reject(Message):
    """The peer may not take part; ``reason`` tells a person what to change."""

    type: Literal["reject"] = "reject"
    reason: str


class Shutdown(Message):
    type: Literal["shutdown"] = "shutdown"
    reason: str


AnyMessage = Annotated[
    Hello
    | Heartbeat
    | GroupDone
    | GroupFailed
    | Goodbye
    | StatusRequest
    | Welcome
    | Leases
    | Ack
    | Cancel
    | Pong
    | Unknown
    | Status
    | Reject
    | Shutdown,
    Field(discriminator="type"),
]
