"""``--role retriever``: build the index as far as it is not there, then serve it until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from configs.logs import fail, setup_logging
from configs.schema import Config
from configs.security import is_loopback
from tools.retrieval.build import build
from tools.retrieval.server import serve

log = logging.getLogger("rollway.retriever")


def main(config: Config) -> int:
    """The exit code: 0 after a signal while serving, or after ``serve: false``; 2 where something must be changed."""
    setup_logging(config.log)
    options = config.retriever
    try:
        corpus, searcher = build(options)
    except ValueError as error:
        return fail(error, 2)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if not options.serve:
        return 0
    if not is_loopback(options.host):
        log.warning("retriever.host %s: whoever reaches it can read the corpus; there is no password", options.host)

    async def until_signal(port: int) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        log.info("%d passages at http://%s:%d/retrieve", len(corpus), options.host, port)
        await stop.wait()

    try:
        uvloop.run(serve(corpus, searcher, options, until_signal))
    except OSError as error:
        return fail(f"retriever.host {options.host}, port {options.port}: {error.strerror}", 2)
    return 0
