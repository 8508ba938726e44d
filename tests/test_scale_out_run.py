"""A run on seven hosts: two with a rank of the learner each, two servers, two with actors, a stranger.

Hosts are network namespaces, so nothing is reached by loopback by mistake. Launcher, ranks, ZeRO-3, gateway,
keys, actors and weight pushes are real; the servers are stand-ins that take the weights over real gloo.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import psutil
import pytest
import yaml
from safetensors.torch import load_file

from protocol.keys import make_keys
from tests.hosts import Hosts, NotPermitted
from tests.lockstep import digest

ROOT = Path(__file__).parents[1]
RUN_PY = [sys.executable, ROOT / "run.py"]
NAMES = ["learner-0", "learner-1", "server-0", "server-1", "actors-0", "actors-1", "stranger"]
PORT = 8100  # each host has its own ports
STEPS, GROUPS, GROUP_SIZE = 3, 4, 3
PATIENCE_S = 600

pytestmark = pytest.mark.timeout(1500)


class Deployment:
    """The processes of one run, a file of output each; what the documents say is what is started."""

    def __init__(self, hosts: Hosts, folder: Path):
        self.hosts, self.folder = hosts, folder
        self.keys, self.run = folder / "keys", folder / "run"
        for host in ("actors-0", "actors-1"):
            make_keys(self.keys, host)
        self.hostfile = folder / "hostfile"
        self.hostfile.write_text("".join(f"{hosts.address[f'learner-{n}']} slots=1\n" for n in range(2)))
        self.preset = folder / "run.yaml"
        self.preset.write_text(yaml.safe_dump(self.config()))

    def config(self) -> dict:
        at = self.hosts.address
        return {
            "run": {"dir": str(self.run), "steps": STEPS},
            "env": {"path": "tests.lockstep:Echoes", "train": ["toy"], "eval": ["toy"]},
            "actor": {"leases": 2, "connect_timeout_s": PATIENCE_S},
            "server": {"urls": [f"http://{at[f'server-{n}']}:{PORT}" for n in range(2)]},
            "learner": {
                "groups": GROUPS, "group_size": GROUP_SIZE, "mini_batches": 2, "zero_stage": 3, "cpu_threads": 1,
                "optimizer": {"lr": 1e-3}, "ranks": 2, "hostfile": str(self.hostfile),
            },
            "gateway": {"host": at["learner-0"], "keys": str(self.keys), "batch_timeout_s": PATIENCE_S},
            "checkpoint": {"every": 2},
            "eval": {"every": 0, "final_size": 3},
            "log": {"trackers": []},
        }  # fmt: skip

    def start(self, host: str, *argv) -> Popen:
        return self.hosts.start(host, argv, self.folder / f"{host}.log", {"PYTHONPATH": str(ROOT)})

    def learner(self, node: int, *options: str) -> Popen:
        words = ["--role", "learner", "--config", self.preset, f"learner.node={node}", *options]
        return self.start(f"learner-{node}", *RUN_PY, *words)

    def actor(self, host: str) -> Popen:
        return self.start(host, *RUN_PY, "--role", "actor", "--config", self.preset, f"gateway.key={host}")

    def server(self, number: int) -> Popen:
        host = f"server-{number}"
        return self.start(host, sys.executable, "-m", "tests.scale_out_server", self.hosts.address[host], PORT)

    def seen(self, number: int) -> dict:
        """What a server has come to, asked on its own host."""
        url = f"http://{self.hosts.address[f'server-{number}']}:{PORT}/seen"
        code = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=20).read().decode())"
        done = self.hosts.run(f"server-{number}", [sys.executable, "-S", "-c", code], 60)
        return json.loads(done.stdout)

    def stranger(self, *options: str) -> tuple[int, str]:
        """(exit code, last words) of an actor that wants to join with ``options``."""
        address = f"gateway.host={self.hosts.address['learner-0']}"
        argv = [*RUN_PY, "--role", "actor", address, "actor.connect_timeout_s=5", *options]
        done = self.hosts.run("stranger", argv, PATIENCE_S)
        return done.returncode, done.stderr

    def newest_step(self) -> int:
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return max((json.loads(line)["step"] for line in lines), default=0)

    def words(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2500:]}" for path in sorted(self.folder.glob("*.log")))

    def snapshots(self) -> list[dict]:
        return [json.loads(line) for line in (self.run / "snapshots.jsonl").read_text().splitlines()]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.words()
            time.sleep(0.1)

    def finish(self, processes: list[Popen]) -> list[int]:
        """Exit codes, in order; does not wait for the others of one that failed."""
        self.until(lambda: all(p.poll() is not None for p in processes) or any(p.poll() for p in processes))
        return [process.poll() for process in processes]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    try:
        with Hosts(NAMES) as hosts:
            yield Deployment(hosts, tmp_path_factory.mktemp("scale-out"))
    except NotPermitted as error:
        pytest.skip(f"the hosts are network namespaces, which are not permitted here (it takes root): {error}")


def test_two_ranks_two_servers_and_actors_on_hosts_of_their_own(run):
    parts = [run.learner(1), run.learner(0), run.actor("actors-0"), run.actor("actors-1")]
    joined = [run.folder / f"actors-{number}.log" for number in range(2)]
    run.until(lambda: all("joined run" in log.read_text() for log in joined))

    # Strangers come while the learner still waits for its servers: nothing of the run can be over yet.
    make_keys(run.folder / "other", "actor")
    code, said = run.stranger(f"gateway.keys={run.folder / 'other'}")
    assert code == 1 and "does not let this actor in" in said

    for number in range(2):
        run.server(number)
    assert run.finish(parts) == [0, 0, 0, 0], run.words()

    summary = json.loads((run.run / "summary.json").read_text())
    assert summary["steps"] == STEPS and summary["episodes"] == STEPS * GROUPS * GROUP_SIZE
    ledger = summary["ledger"]
    assert (ledger["consumed"], ledger["lost"], ledger["duplicates"]) == (STEPS * GROUPS, 0, 0)
    trained = digest(load_file(run.run / "export" / "model.safetensors")).hex()
    for server in (run.seen(0), run.seen(1)):
        assert server["version"] == str(STEPS) and server["digest"] == trained and server["requests"] > 0
    groups = {row["id"]: row["stats"].get("groups", 0) for seen in run.snapshots() for row in seen.get("actors", [])}
    assert len(groups) == 2 and all(groups.values())


def test_asked_to_stop_as_a_cluster_asks_all_ranks_save_and_the_run_goes_on_from_there(run):
    """SIGTERM for each launcher, and, as Slurm does, for the ranks below it as well."""
    launchers = [run.learner(1, "--resume", "run.steps=1000"), run.learner(0, "--resume", "run.steps=1000")]
    actor = run.actor("actors-0")
    run.until(lambda: run.newest_step() >= STEPS + 1 or any(p.poll() is not None for p in launchers))
    for process in [child for p in launchers for child in (psutil.Process(p.pid), *psutil.Process(p.pid).children())]:
        process.terminate()
    run.until(lambda: all(p.poll() is not None for p in (*launchers, actor)))

    summary = json.loads((run.run / "summary.json").read_text())
    assert STEPS < summary["steps"] < 1000, run.words()
    assert (run.run / "checkpoints" / "latest").read_text().strip() == f"checkpoint-{summary['steps']}"
    ledger = summary["ledger"]
    assert (ledger["consumed"], ledger["lost"], ledger["duplicates"]) == (summary["steps"] * GROUPS, 0, 0)
    assert actor.returncode == 0
