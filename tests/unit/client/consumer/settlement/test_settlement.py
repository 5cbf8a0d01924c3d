"""Messages that a broker does not take back come again."""

from __future__ import annotations

import asyncio
import math

import pytest

from metaq import Message, Queue
from metaq.client.consumer.group.group_member import GroupMember
from metaq.client.consumer.options import ConsumerOptions
from metaq.client.consumer.pull.buffers import QueueBuffer
from metaq.client.consumer.settlement import settlement
from metaq.client.consumer.settlement.settlement import Settlement
from metaq.client.consumer.subscription import Reject, Subscription
from metaq.client.session.session import Session
from metaq.protocol.errors import Unreachable

QUEUE = Queue("t", "b", 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_batch_that_a_broker_does_not_take_comes_again_in_order(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    async def away(_: Session, __: ConsumerOptions, message: Message, *___: object) -> None:
        if message.queue_offset != 1:
            raise Unreachable("the broker is away")

    monkeypatch.setattr(settlement, "send_back", away)
    monkeypatch.setattr(settlement, "SEND_BACK_PAUSE_S", 0.0)

    async def scenario() -> list[int]:
        options = ConsumerOptions("g", (Subscription.of("t"),), ordered=ordered, batch=4)
        member = GroupMember(Session("127.0.0.1:1"), options)
        prefetch = member.prefetch
        buffer = prefetch.buffers[QUEUE] = QueueBuffer(QUEUE, 0, options.limits)
        buffer.locked_until = math.inf
        buffer.put([Message("t", b"", queue=QUEUE, queue_offset=number) for number in range(5)], 5)
        taken = prefetch.take_now(4)
        assert taken is not None
        await Settlement(member).reject(*taken, Reject())
        while buffer.in_hand:
            await asyncio.sleep(0)
        again = prefetch.take_now(4)
        assert again is not None
        return [message.queue_offset for message in again[1]]

    assert asyncio.run(scenario()) == [0, 2, 3, 4]
