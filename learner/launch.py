"""The learner on several ranks: ``--role learner`` becomes DeepSpeed's launcher, which starts it again once a rank.

On one machine, and on a host of ``learner.hostfile`` that is started by itself (``learner.node``), that is
``deepspeed.launcher.launch``. Without ``learner.node`` it is ``deepspeed.launcher.runner``, which starts the
former on every host by pdsh over ssh. No torch here: the launcher takes this process's place.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from configs.schema import Config, LearnerConfig
from configs.security import is_loopback

#: A line of a hostfile without its comment, as DeepSpeed reads it.
_LINE = re.compile(r"(\S+)\s+slots=([1-9]\d*)")
_LOCAL = "127.0.0.1"


class LaunchError(Exception):
    """The ranks cannot be started as configured; the message is one line and says what to change."""


class RanksMissing(TimeoutError):
    """Not all ranks came to where they meet; the message is one line and says where to look."""


def launcher(config: Config, words: Sequence[str]) -> list[str] | None:
    """The command line to become; None for a learner of one rank, which needs none.

    words: this program's command line after its name, for the ranks. Raises ``LaunchError``.
    """
    learner = config.learner
    if learner.hostfile is None:
        if learner.ranks == 1:
            return None
        slots = {"localhost": learner.devices or list(range(learner.ranks))}
        return _on_this_host(slots, 0, _LOCAL, _free_port(), words)
    slots = _slots(config)
    master = learner.master_address or next(iter(slots))
    if len(slots) > 1:
        _check_master(master)
    if learner.node is None:
        return _over_ssh(learner, slots, master, words)
    if learner.node >= len(slots):
        raise LaunchError(f"learner.node is {learner.node}: {learner.hostfile} has hosts 0 to {len(slots) - 1}")
    return _on_this_host(slots, learner.node, master, learner.master_port, words)


def leader(pid: int) -> psutil.Process:
    """The process of rank 0 of the learner that was started as ``pid``: itself, or a child where it became a launcher.

    A launcher that is asked to stop gives its ranks 30 s; rank 0, asked itself, saves for as
    long as it takes. Raises ``psutil.NoSuchProcess``.
    """
    process = psutil.Process(pid)
    for child in process.children():
        with suppress(psutil.Error):  # it ended meanwhile
            if child.environ().get("RANK") == "0":
                return child
    return process


# ── hosts ────────────────────────────────────────────────────────────────────


def _slots(config: Config) -> dict[str, list[int]]:
    """Host → slots of its ranks, GPU ids where there are GPUs; hosts in the order of the file."""
    learner = config.learner
    slots = {}
    for host, count in _read_hostfile(learner.hostfile).items():
        slots[host] = learner.devices or list(range(count))
        if max(slots[host]) >= count:
            raise LaunchError(
                f"learner.devices names GPU {max(slots[host])}, and {learner.hostfile} gives {host} {count} slots: they are "
                f"its GPUs, 0 to {count - 1}"
            )
    total = sum(map(len, slots.values()))
    if total != learner.ranks:
        raise LaunchError(
            f"{learner.hostfile} makes {total} ranks and learner.ranks is {learner.ranks}: set learner.ranks={total}"
        )
    return slots


def _read_hostfile(path: Path) -> dict[str, int]:
    """Host → number of slots."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"learner.hostfile {path} cannot be read: {error}") from None
    counts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise LaunchError(f"{path}:{number}: want HOST slots=N, N at least 1, and not {text!r}")
        host, count = found.groups()
        if host in counts:
            raise LaunchError(f"{path}:{number}: {host} is there twice: give it all its slots in one line")
        counts[host] = int(count)
    if not counts:
        raise LaunchError(f"learner.hostfile {path} names no host: write HOST slots=N, one a line")
    return counts


def _check_master(master: str) -> None:
    """Many a host's own name stands for 127.0.1.1 in its /etc/hosts: rank 0 would wait there for the others."""
    try:
        address = socket.gethostbyname(master)
    except OSError:  # where hosts start together a name may come late; the ranks wait for it
        return
    if is_loopback(address):
        raise LaunchError(
            f"the learner's first host, {master}, is {address} here, where its other hosts cannot reach it: "
            "set learner.master_address to an address that they can"
        )


def _free_port() -> int:
    with socket.create_server((_LOCAL, 0)) as server:
        return server.getsockname()[1]


# ── command lines ────────────────────────────────────────────────────────────


def _on_this_host(slots: dict[str, list[int]], node: int, master: str, port: int, words: Sequence[str]) -> list[str]:
    world = base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()
    return [
        *(sys.executable, "-u", "-m", "deepspeed.launcher.launch", "--log_level=warning"),
        *(f"--world_info={world}", f"--node_rank={node}"),
        *(f"--master_addr={master}", f"--master_port={port}"),
        *(_program(), *words),
    ]


def _over_ssh(learner: LearnerConfig, slots: dict[str, list[int]], master: str, words: Sequence[str]) -> list[str]:
    if missing := [name for name in ("pdsh", "ssh") if not shutil.which(name)]:
        raise LaunchError(
            f"{missing[0]} is not installed, and learner.hostfile needs it to start the hosts from here: install it, or "
            "start --role learner on each host with its learner.node (docs/scale-out.md)"
        )
    include = "@".join(f"{host}:{','.join(map(str, ids))}" for host, ids in slots.items())
    return [
        *(sys.executable, "-u", "-m", "deepspeed.launcher.runner", "--log_level=warning", "--force_multi"),
        *(f"--hostfile={learner.hostfile}", f"--include={include}"),
        *(f"--master_addr={master}", f"--master_port={learner.master_port}"),
        *(_program(), *map(_through_pdsh, words)),
    ]


def _program() -> str:
    return str(Path(__file__).parents[1] / "run.py")


def _through_pdsh(word: str) -> str:
    """Quoted so that the shell on the other host gives ``word`` back.

    The launcher sets words with a blank between double quotes, its quotes escaped, and leaves others as they are.
    """
    return re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word)
