"""The actor process against stand-ins for server and learner: light, and in good order to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.schema import ActorConfig, EnvConfig, ModelConfig, SamplingConfig
from tests.actor_cases import lease, solver
from tests.canned_learner import CannedLearner
from tests.canned_server import CannedServer
from tests.chat_templates import write_model

REPO = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def share(model: Path) -> dict:
    """What ``Welcome.config`` holds."""
    env = EnvConfig()
    parts = {
        "env": env,
        "sampling": SamplingConfig(),
        "actor": ActorConfig(leases=3, heartbeat_s=0.2),
        "model": ModelConfig(path=str(model)),
    }
    dumped = {name: part.model_dump(mode="json") for name, part in parts.items()}
    return dumped | {"envs": {"main": {"path": env.path, "args": env.args}}}


def spawn(port: int, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "run.py", "--role", "actor", f"gateway.port={port}", "actor.heartbeat_s=0.2", *overrides]
    return subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def cpu_seconds(pid: int) -> float:
    """Time on a core so far. The clock on the wall would measure the machine's other work too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ended(process: subprocess.Popen, timeout_s: float) -> tuple[int, str]:
    output, _ = await asyncio.to_thread(process.communicate, timeout=timeout_s)
    return process.returncode, output


async def test_an_actor_process_is_light_works_and_ends_with_the_run(model):
    async with CannedServer(solver()) as server, CannedLearner(share(model), [server.url]) as learner:
        process = spawn(learner.port)
        try:
            await learner.until(lambda: any(beat.capacity for beat in learner.beats))
            assert cpu_seconds(process.pid) < 4, "ready in under 6 s on a machine that others use too"
            await learner.give(*(lease(f"L{i}") for i in range(3)))
            await learner.until(lambda: len(learner.groups) == 3)
            await learner.until(lambda: learner.beats[-1].held == [])
            assert learner.beats[-1].capacity == 3 and learner.beats[-1].stats["rss_mb"] < 350
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
            await learner.shut_down()
            code, output = await ended(process, 30)
            assert code == 0 and "the test is over" in output
            await learner.until(lambda: learner.said_goodbye)
        finally:
            process.kill()
    assert all(t.facts["metrics"]["em"] == 1.0 for group in learner.groups.values() for t in group.trajectories)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_one_signal_hands_the_leases_back_in_seconds(model, number):
    async with (
        CannedServer(solver(), delay_s=60) as server,
        CannedLearner(share(model), [server.url]) as learner,
    ):
        process = spawn(learner.port)
        try:
            await learner.until(lambda: bool(learner.beats))
            await learner.give(lease())
            await learner.until(lambda: learner.beats[-1].held == ["L1"])
            started = time.monotonic()
            os.kill(process.pid, number)
            code, output = await ended(process, 30)
            assert code == 0 and time.monotonic() - started < 10, output
            await learner.until(lambda: learner.said_goodbye)
        finally:
            process.kill()


async def test_no_learner_is_one_clear_line_and_an_exit_code():
    process = spawn(1, "actor.connect_timeout_s=0.5")
    code, output = await ended(process, 60)
    assert code == 1 and "Traceback" not in output
    assert "error: no learner answers at tcp://127.0.0.1:1" in output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": ModelConfig(path="/nowhere/model").model_dump(mode="json")}, "/nowhere/model"),
        ({"envs": {"main": {"path": "envs.multihop:Nope", "args": {}}}}, "Nope"),
        ({"sampling": {"heat": 3}}, "heat"),
    ],
)
async def test_a_configuration_that_cannot_be_carried_out_is_fatal_and_told(model, change, words):
    async with CannedLearner(share(model) | change, []) as learner:
        code, output = await ended(spawn(learner.port), 60)
        assert code == 3 and "error: " in output and words in output and "Traceback" not in output
        await learner.until(lambda: learner.said_goodbye)
