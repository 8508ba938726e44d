"""The interval of heartbeats is the learner's, whatever the actor was configured with."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from actors.link import Link
from learner.gateway.dispatch import SILENT_BEATS
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from protocol.messages import Leases
from tests.wire_samples import config, free_port, tasks

BEAT = 0.2


@pytest.mark.parametrize("own", [50 * BEAT, BEAT / 50])
async def test_the_learner_sets_the_interval(own, monkeypatch):
    port = free_port()
    welcome = {"actor": {"heartbeat_s": BEAT}}
    gateway = Gateway(config(heartbeat_s=BEAT, port=port), Ledger(":memory:", tasks(9), 0), "run", welcome)
    beats = 0
    hear = gateway._dispatcher.on_message

    def count(actor_id, message, group, now):
        nonlocal beats
        beats += message.type == "heartbeat"
        return hear(actor_id, message, group, now)

    monkeypatch.setattr(gateway._dispatcher, "on_message", count)
    gateway.start()
    link = Link(f"tcp://127.0.0.1:{port}", "actor-0", own)
    try:
        await link.connect(10.0)
        link.update(4, [], {}, {})
        event = await asyncio.wait_for(link.next_event(), 10)
        assert isinstance(event, Leases) and len(event.leases) == 4
        link.update(4, [lease.lease_id for lease in event.leases], {}, {})
        await asyncio.sleep(0.5)
        beats = 0
        span = 2 * SILENT_BEATS
        await asyncio.sleep(span * BEAT)
        assert 2 <= beats <= span + 2
        assert (gateway.snapshot()["queue"]["leased"], gateway.snapshot()["queue"]["reissued"]) == (4, 0)
    finally:
        await link.goodbye()
        await asyncio.to_thread(gateway.stop, "over")


def test_the_number_of_a_boot_is_on_disk_before_anything_is_issued(tmp_path, monkeypatch):
    """Else a power cut would let the next boot name its leases as this one did."""
    statements = []

    class Recorded(sqlite3.Connection):
        def execute(self, sql, *args):
            statements.append(sql)
            return super().execute(sql, *args)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, factory=Recorded, **more))
    Ledger(tmp_path / "ledger.sqlite", tasks(3), 0).close()
    boot = next(i for i, sql in enumerate(statements) if sql.startswith("UPDATE meta SET value = ? WHERE key = 'boot'"))
    written = statements.index("COMMIT", boot)
    assert [sql for sql in statements[:written] if "synchronous" in sql][-1] == "PRAGMA synchronous = FULL"
    assert [sql for sql in statements if "synchronous" in sql][-1] == "PRAGMA synchronous = NORMAL"
