"""Start offsets are committed at once, and new topics are read from their beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaq import Queue
from metaq.client.consumer.offsets import positions
from metaq.errors import MetaqError
from tests.integration.client.conftest import Served
from tests.integration.client.test_consumer_contract import connected, name
from tests.integration.client.test_consumer_edges import noting
from tests.support.clients import Face, create_topic, send
from tests.support.waiting import run, until


@pytest.mark.parametrize("mode", ["cluster", "broadcast"])
def test_messages_that_arrive_while_no_member_runs_are_not_skipped(
    face: Face, served: Served, tmp_path: Path, mode: str
) -> None:
    async def scenario() -> None:
        topic = name(face, f"idle-{mode}")
        await create_topic(served.broker, topic, queues=2)
        await send(served.broker, topic, "before", queue_id=0)
        bodies: list[str] = []
        mine: set[Queue] = set()

        async def consume(client: Any) -> None:
            keywords = {"offsets_file": tmp_path / "offsets.json"} if mode == "broadcast" else {}
            declare = client.consumer(
                topic,
                group=topic,
                mode=mode,
                start="latest",
                on_rebalance=lambda gained, lost: mine.update(q for q in gained if q.topic == topic),
                **keywords,
            )
            await face.call(declare, face.handler(noting(bodies)))

        async with connected(face, served) as client:
            await consume(client)
            await until(lambda: len(mine) == 2)
        for queue_id in range(2):
            await send(served.broker, topic, f"between-{queue_id}", queue_id=queue_id)
        async with connected(face, served) as client:
            await consume(client)
            await until(lambda: len(bodies) >= 2)
        assert sorted(bodies) == ["between-0", "between-1"]

    run(scenario)


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_topic_that_appears_is_read_from_its_beginning(
    face: Face, served: Served, monkeypatch: pytest.MonkeyPatch, fails_first: bool
) -> None:
    topic = name(face, f"appears-{fails_first}")
    failures = [MetaqError("not now")] if fails_first else []
    earliest_offset = positions.earliest_offset

    async def asked(session: Any, queue: Queue) -> int:
        if failures and queue.topic == topic:
            raise failures.pop()
        return await earliest_offset(session, queue)

    monkeypatch.setattr(positions, "earliest_offset", asked)

    async def scenario() -> None:
        bodies: list[str] = []
        async with connected(face, served) as client:
            consumer = await face.call(
                client.consumer(topic, group=topic, start="latest"), face.handler(noting(bodies))
            )
            await face.call(consumer.start)
            await create_topic(served.broker, topic, queues=1)
            await send(served.broker, topic, "first")
            await until(lambda: bool(bodies))
        assert (bodies, failures) == (["first"], [])

    run(scenario)
