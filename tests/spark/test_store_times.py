"""Conditions on store times read from MetaQ's brokers no more than they select."""

from __future__ import annotations

from datetime import timedelta

from metaq.admin.positions import milliseconds
from metaq.spark.source.batch import BatchReader
from metaq.spark.source.options import source_options
from metaq.spark.source.pushdown import Narrowed
from metaq.testing import LocalMetaq
from tests.spark.support import Topics

TOPIC = "times"


def test_no_message_of_another_time_is_read() -> None:
    """Once, a minute more was read on each side, for brokers whose clock is set back."""
    with LocalMetaq() as server:
        topics = Topics(server)  # type: ignore[arg-type]
        try:
            topics.create(TOPIC)
            times_ms = []
            for bodies in (["a", "b"], ["c", "d", "e"], ["f"]):
                server.clock.advance(timedelta(minutes=10 if not times_ms else 0, seconds=5))
                topics.fill(TOPIC, bodies)
                times_ms.append(milliseconds(server.messages(TOPIC)[-1].stored_time))
            server.clock.advance(timedelta(seconds=5))
        finally:
            topics.close()
        options = source_options({"nameservers": server.nameserver, "subscribe": TOPIC}, streaming=False)

        def read(narrowed: Narrowed) -> list[tuple[int, int]]:
            parts = [task.part for task in BatchReader(options, narrowed).partitions()]
            return [(part.from_offset, part.to_offset) for part in parts]

        assert read(Narrowed(from_ms=times_ms[0] + 1_000)) == [(2, 6)]
        assert read(Narrowed(to_ms=times_ms[1] + 1_000)) == [(0, 5)]
        assert read(Narrowed(from_ms=times_ms[0] + 1_000, to_ms=times_ms[1] + 1_000)) == [(2, 5)]
        # Messages from before the start of this broker could be those of an Apache broker.
        assert read(Narrowed(from_ms=times_ms[0] - 10 * 60_000)) == [(0, 6)]
