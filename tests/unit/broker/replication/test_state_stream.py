"""A replica that takes over all control state hears of everything that changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from metaq.broker.replication.state_stream import Kind, StateIntake, StateMessage
from metaq.journal.journal import Entry, Journal


def message(kind: Kind, *entries: Entry) -> tuple[int, int, bytes]:
    newest = entries[-1]
    return newest.epoch, newest.version, msgspec.msgpack.encode(StateMessage(kind, list(entries)))


def test_a_replaced_journal_is_returned_with_what_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        intake = StateIntake(journal)
        first = [Entry(1, 1, "topics", "old", b"1"), Entry(1, 2, "topics", "kept", b"1")]
        assert await intake.take([message(Kind.ENTRIES, *first)]) == []
        parts = [Entry(2, 7, "topics", "kept", b"2"), Entry(2, 9, "topics", "new", b"2")]
        behind = Entry(2, 10, "topics", "new", b"3")
        replaced = await intake.take(
            [
                message(Kind.PART, parts[0]),
                message(Kind.LAST_PART, parts[1]),
                message(Kind.ENTRIES, behind),
            ]
        )
        assert replaced == [Entry(2, 10, "topics", "old", None), parts[0], behind]
        assert journal.point == (2, 10)
        await journal.close()

    asyncio.run(scenario())
