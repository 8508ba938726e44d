"""``--role chat``: a server on ``model.path``, or those of ``server.urls``, and the terminal that talks to it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from configs.load import dump_config
from configs.schema import Config
from learner.evaluation.checkpoint import model_folder
from learner.servers.cluster import Cluster, StartError
from learner.servers.serving import ServerError
from tools.progress import waiting

#: Exit code of a chat that was stopped before it began.
STOPPED = 130
#: Seconds between two looks whether the server lives, and how long the terminal may take to leave.
_LOOK_S, _LEAVE_S = 0.5, 10.0


def main(config: Config) -> int:
    """Exit codes: 0 a person left, 130 stopped while the server started, 1 something could not be had.

    The terminal is a process of its own, as every actor is: what samples and runs tools
    loads nothing of the learner.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    config = config.model_copy(update={"baselines": []})
    try:
        with tempfile.TemporaryDirectory(prefix="rollway-chat-") as scratch:
            return _chat(config, Path(scratch))
    except (StartError, ServerError, ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return STOPPED


def _chat(config: Config, folder: Path) -> int:
    model = config.model.model_copy(update={"path": model_folder(config.model.path, folder)})
    config = config.model_copy(update={"model": model})
    cluster, terminal = Cluster(config, folder / "logs"), None
    try:
        cluster.start_servers()
        with waiting() as say:
            urls = cluster.wait_for_servers(say)
        server = config.server.model_copy(update={"urls": urls})
        path = folder / "config.yaml"
        path.write_text(dump_config(config.model_copy(update={"server": server})), encoding="utf-8")
        # Ctrl-C is for the terminal, which gets it too; a handler, unlike SIG_IGN, is not handed down to it.
        signal.signal(signal.SIGINT, lambda *_: None)
        terminal = subprocess.Popen([sys.executable, "-m", "actors.talk", str(path)])
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return terminal.wait(timeout=_LOOK_S)
            for event in cluster.revive():
                print(event, file=sys.stderr)
    finally:
        if terminal and terminal.poll() is None:
            terminal.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                terminal.wait(timeout=_LEAVE_S)
            terminal.kill()
        cluster.stop()


def _interrupt(*_: object) -> None:
    """SIGTERM ends a chat by way of every ``finally``. A second one changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
