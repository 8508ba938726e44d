"""``--role actor``: join the learner, work on its leases until it, or a signal, says stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

# Before numpy and faiss are imported: one query at a time needs no team of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import uvloop

from actors.chat import ChatFormat, ChatFormatError
from actors.episode import Limits
from actors.link import Link, LinkError
from actors.metrics import serve_metrics
from actors.openai.endpoint import Endpoint
from actors.openai.player import AgentPlayer
from actors.openai.program import Agents
from actors.pool import Pool
from actors.sampler import Sampler
from actors.wire import WireThread
from configs.agent import AgentConfig
from configs.logs import fail, setup_logging
from configs.schema import ActorConfig, Config, EnvConfig, ModelConfig, SamplingConfig, Section
from configs.section import NonNegative
from envs.configured import prepare_tools, shutdown_tools
from envs.registry import load_env
from protocol.keys import ClientKeys, KeysError
from protocol.messages import Cancel, Leases, Shutdown

log = logging.getLogger("rollway.actor")

#: Exit codes: ``LOST`` may be mended by a restart, ``FATAL`` only by changing something.
LOST, FATAL = 1, 3

#: Most reports of the pool to the link in one heartbeat: each goes through everything that is held.
REPORTS = 20

#: Takes the newest ``Pool.stats()``.
OnStats = Callable[[dict[str, Any]], None]


class SetupError(Exception):
    """The learner's configuration cannot be carried out here: model, environment or fields do not fit."""


class EnvSpec(Section):
    """One entry of ``Welcome.config["envs"]``."""

    path: str
    args: dict[str, Any]


class ActorShare(Section):
    """``Welcome.config``: the sections of the resolved configuration that an actor needs."""

    env: EnvConfig
    envs: dict[str, EnvSpec]
    sampling: SamplingConfig
    actor: ActorConfig
    model: ModelConfig
    agent: AgentConfig | None = None
    eval_temperature: NonNegative = 0.0

    @property
    def limits(self) -> Limits:
        return Limits(self.env.max_turns, self.model.max_tokens, self.sampling.turn_tokens)


def main(config: Config) -> int:
    """Run one actor of the learner at ``gateway.host:gateway.port``; the exit code."""
    setup_logging(config.log)
    address = f"tcp://{config.gateway.host}:{config.gateway.port}"
    actor_id = os.environ.get("ROLLWAY_ACTOR_ID") or f"{socket.gethostname()}-{os.getpid()}"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            gateway = config.gateway
            keys = ClientKeys.load(gateway.keys, gateway.key) if gateway.keys else None
            on_stats = serve_metrics(config.metrics, actor_id).update
            runner.run(run_until_signal(address, actor_id, config.actor, keys, on_stats))
            return 0
        except LinkError as error:
            return fail(error, LOST)
        except (KeysError, SetupError) as error:
            return fail(error, FATAL)


async def run_until_signal(
    address: str, actor_id: str, actor: ActorConfig, keys: ClientKeys | None, on_stats: OnStats
) -> None:
    """``run_actor`` that SIGINT or SIGTERM ends: once in good order, twice at once."""
    work = asyncio.ensure_future(run_actor(address, actor_id, actor, keys, on_stats))

    asked = False

    def stop() -> None:
        nonlocal asked
        if asked:
            os._exit(128 + signal.SIGINT)
        asked = True
        log.info("signal: handing the leases back")
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await asyncio.wait({work})
    if not work.cancelled():
        work.result()


async def run_actor(
    address: str,
    actor_id: str,
    actor: ActorConfig,
    keys: ClientKeys | None = None,
    on_stats: OnStats = lambda stats: None,
) -> None:
    """Work for the learner at a ZeroMQ address until it says that the run is over.

    actor: how to reach the learner (heartbeat, time-out); all else comes with its welcome.
    keys: where the learner asks for them. on_stats: called with the figures of each heartbeat.
    Raises ``LinkError`` when the learner is not there or gone, ``SetupError``. Cancelling
    it hands the leases back and says goodbye.
    """
    started = time.monotonic()
    link = Link(address, actor_id, actor.heartbeat_s, functools.partial(WireThread, keys=keys))
    welcome = await link.connect(actor.connect_timeout_s)
    try:
        try:
            share = ActorShare.model_validate(welcome.config)
            envs = {name: load_env(spec.path, spec.args) for name, spec in share.envs.items()}
            chat = ChatFormat.load(share.model.path, share.model.tool_format)
            agents = Agents(share.agent) if share.agent else None
            await prepare_tools(envs.values())
            gc.freeze()  # what is there now stays: the collector need not walk through it again and again
        except (ChatFormatError, ValueError) as error:
            raise SetupError(str(error)) from error
        async with (
            Sampler(link, share.actor.request_timeout_s) as sampler,
            _player(share, agents, chat, sampler) as agent,
        ):
            log.info("%s joined run %s, ready after %.1f s", actor_id, welcome.run_id, time.monotonic() - started)
            try:
                await _serve(link, share, envs, chat, sampler, on_stats, agent)
            finally:
                await shutdown_tools(envs.values())
    finally:
        await link.goodbye()


@contextlib.asynccontextmanager
async def _player(
    share: ActorShare, agents: Agents | None, chat: ChatFormat, sampler: Sampler
) -> AsyncIterator[AgentPlayer | None]:
    """Who plays the run's own tasks where that is an agent of the user's."""
    if agents is None:
        yield None
        return
    async with agents, Endpoint() as endpoint:
        yield AgentPlayer(share.agent, agents, endpoint, chat, sampler, share.limits)


async def _serve(
    link: Link,
    share: ActorShare,
    envs: dict,
    chat: ChatFormat,
    sampler: Sampler,
    on_stats: OnStats = lambda stats: None,
    agent: AgentPlayer | None = None,
) -> None:
    stats: dict[str, Any] = {}
    loop = asyncio.get_running_loop()
    planned: asyncio.TimerHandle | None = None
    reported = loop.time()

    def report() -> None:
        nonlocal planned, reported
        planned, reported = None, loop.time()
        link.update(share.actor.leases, pool.held, pool.oldest, stats)

    def report_soon() -> None:
        nonlocal planned
        if planned is None:
            planned = loop.call_at(reported + share.actor.heartbeat_s / REPORTS, report)

    pool = Pool(
        envs,
        chat,
        sampler,
        share.limits,
        share.sampling,
        share.actor.episode_retries,
        deliver=link.deliver,
        fail=link.fail,
        on_change=report_soon,
        eval_temperature=share.eval_temperature,
        agent=agent,
    )
    stats_due = 0.0
    try:
        while True:
            if (now := time.monotonic()) >= stats_due:
                stats, stats_due = pool.stats(), now + share.actor.heartbeat_s / 2
                on_stats(stats)
            report_soon()
            try:
                async with asyncio.timeout(share.actor.heartbeat_s / 2):
                    event = await link.next_event()
            except TimeoutError:
                continue
            match event:
                case Leases():
                    for lease in event.leases:
                        pool.start(lease)
                case Cancel():
                    pool.cancel(event.lease_ids)
                case Shutdown():
                    log.info("the learner ends the run: %s", event.reason)
                    return
    finally:
        if planned:
            planned.cancel()
        await pool.close()
