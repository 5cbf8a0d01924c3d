"""Ids as clients write them, and questions to many clients. Most relays are tested with a running broker."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.requests.relays import STATUS_BYTES_MAX, Relays, _Told, physical_offset_of
from metaq.broker.requests.spaced_work import UPDATES_AT_ONCE
from metaq.broker.state.clients import Clients
from metaq.broker.state.consumer_group import Member
from metaq.protocol.bodies import ConsumerData, GetConsumerStatusBody
from metaq.protocol.command import Command
from metaq.protocol.commands.clients import GetConsumerStatus
from metaq.protocol.errors import ProtocolError, Unreachable
from metaq.protocol.reply import Reply
from metaq.settings import MIB
from metaq.work_pools import WorkPools


def test_a_message_id_ends_with_the_physical_offset() -> None:
    assert physical_offset_of("7F0000010000A9750000000000000306") == 0x306
    assert physical_offset_of("0" * 40 + "00000000000000FF") == 0xFF


@pytest.mark.parametrize(
    "message_id",
    ["", "7F", "Z" * 32, "7F0000010000A975FFFFFFFFFFFFFFFF", "7F0000010000A975-000000000000306", "_" * 32],
)
def test_what_is_no_message_id_is_told(message_id: str) -> None:
    with pytest.raises(ProtocolError, match="not an offset message id"):
        physical_offset_of(message_id)


@given(text=st.text(max_size=60))
def test_no_text_does_harm(text: str) -> None:
    for attempt in (text, text[:32].ljust(32, "0")):
        try:
            assert physical_offset_of(attempt) >= 0
        except ProtocolError:
            continue


def test_answers_that_are_too_long_together_are_not_kept() -> None:
    told = _Told()
    for connection in range(100):
        told.add(connection, bytes(MIB))
        assert sum(map(len, told.bodies.values())) <= STATUS_BYTES_MAX
    assert told.size_bytes == 100 * MIB, "the refusal says how long they are"
    assert not told.bodies


MEMBERS = 500


class FakePump:
    """Its clients answer once all of them have been asked, but for one that never does."""

    def __init__(self) -> None:
        self.asked = 0
        self._all_asked = asyncio.Event()

    def waiting_for_client(self, questions: int) -> AbstractContextManager[None]:
        assert questions == MEMBERS
        return nullcontext()

    async def invoke(self, connection: int, command: Command, timeout: float) -> Reply:
        self.asked += 1
        if self.asked == MEMBERS:
            self._all_asked.set()
        await self._all_asked.wait()
        if connection == 0:
            raise Unreachable("it does not answer")
        return Reply(0, None, {}, GetConsumerStatusBody().encode())


def test_the_members_of_a_large_group_are_asked_in_turns(tables: Any, request_with: Any) -> None:
    clients = Clients(tables.clock, 120.0, lambda group, change: None)
    for connection in range(MEMBERS):
        member = Member(connection, f"c{connection}", 0, 513, "h:1", tables.clock.now_ms())
        clients.put_consumer(ConsumerData(group_name="g"), member)

    async def scenario() -> None:
        pump = FakePump()
        options: Any = SimpleNamespace(client_status_timeout_s=60.0)
        parts: Any = (pump, clients, None, tables.topics, tables.groups, options, WorkPools())
        command = GetConsumerStatus(topic="t", group="g")
        asking = asyncio.create_task(Relays(*parts).get_consumer_status(command, request_with()))
        before = 0
        while not asking.done():
            await asyncio.sleep(0)
            assert pump.asked - before <= UPDATES_AT_ONCE
            before = pump.asked
        answer = GetConsumerStatusBody.decode((await asking).body)
        assert len(answer.consumer_table) == MEMBERS - 1

    asyncio.run(scenario())
