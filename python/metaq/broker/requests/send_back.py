"""Messages that a consumer failed to handle: they come again later, or go to the dead letters after too many
tries."""

from __future__ import annotations

import random
from collections.abc import Mapping

from metaq._core import BrokerPlane, Record, Store, StoreFailure, decode_records
from metaq.broker.state.broker_own import check_group, readable_record
from metaq.broker.state.copy_budget import CopyBudget
from metaq.broker.state.groups import Groups, missing_group
from metaq.broker.state.topics import Topics
from metaq.protocol import names
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import ConsumerSendMsgBack, TakenBack
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.local_peers import source_of
from metaq.protocol.properties import (
    DEAD_LETTER_ERROR,
    DEAD_LETTER_MESSAGE_ID,
    DEAD_LETTER_REASON,
    DEAD_LETTER_TOPIC,
    DELAY_LEVEL,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    SYSTEM_NAMES,
    encode_properties,
)
from metaq.work_pools import WorkPools

FIRST_RETRY_LEVEL = 3
"""The first retry waits for delay level 3 (10 s), each later one for the next level."""
REASON_CHARACTERS_MAX = 500
PROPERTIES_BYTES_MAX = 32_767
MARGIN_BYTES = 256
"""Room for properties that the store adds."""
_SYSTEM_NAMES = tuple(SYSTEM_NAMES)
TRIES_MAX = 2**31 - 1
"""A record has 32 bits for the number of its tries."""


class Retries:
    """Takes messages back from consumers."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        store: Store,
        plane: BrokerPlane,
        pools: WorkPools,
        budget: CopyBudget,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._store = store
        self._plane = plane
        self._pools = pools
        self._budget = budget

    @handles(ConsumerSendMsgBack)
    async def consumer_send_msg_back(self, command: ConsumerSendMsgBack, request: Request) -> Response | None:
        check_group(command.group)
        config = self._groups.get(command.group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.group))
        if config.retry_queue_nums <= 0:
            return None  # The group does not want failed messages again.
        source = source_of(request.remote)
        self._budget.check(source)
        stored = await self._pools.storing.run(
            request, lambda: readable_record(self._store, command.physical_offset)
        )
        if stored is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"no message begins at physical offset {command.physical_offset}"
            )
        # Other requests may have used up the budget while this one was reading.
        self._budget.charge(source, len(stored))
        (record,) = decode_records(stored)
        # Senders set this number as well.
        tries = min(max(record.reconsume_times, 0), TRIES_MAX - 1)
        exhausted = self._plane.retries_exhausted(command.group, tries, command.max_reconsume_times)
        if exhausted is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(command.group))
        # Senders set these as well, and a copy with two long ones would not fit into a record.
        origin_id = _short(record, ORIGIN_MESSAGE_ID) or record.message_id
        origin_topic = _short(record, RETRY_TOPIC) or record.topic
        properties = {RETRY_TOPIC: origin_topic, ORIGIN_MESSAGE_ID: origin_id}
        is_dead = command.delay_level < 0 or exhausted
        if is_dead:
            topic, queue_id, level = names.dead_letter_topic(command.group), 0, 0
            properties |= {DEAD_LETTER_TOPIC: origin_topic, DEAD_LETTER_MESSAGE_ID: origin_id}
            properties |= _reason(command, {**record.properties, **properties})
            await ensure_dead_letters(self._topics, command.group)
        else:
            topic = names.retry_topic(command.group)
            queue_id = random.randrange(config.retry_queue_nums)
            level = command.delay_level or FIRST_RETRY_LEVEL + tries
            if self._topics.ensure_retry_topic(command.group, config.retry_queue_nums):
                await self._topics.publish([topic])
        try:
            await self._pools.storing.run(
                request,
                lambda: self._plane.resend(
                    command.physical_offset,
                    topic,
                    queue_id,
                    reconsume_times=tries + 1,
                    delay_level=level,
                    drop=(DELAY_LEVEL,),
                    properties=properties,
                    system_names=_SYSTEM_NAMES,
                ),
            )
        except (StoreFailure, LookupError) as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the message was not taken back: {error}") from None
        return Response(fields=TakenBack(is_dead_letter=True)) if is_dead else None


def _short(record: Record, name: str) -> str | None:
    """Returns a property unless it is longer than the broker would write it."""
    value = record.properties.get(name, "")
    return value if 0 < len(value) <= names.RETRY_TOPIC_CHARACTERS_MAX else None


def _reason(command: ConsumerSendMsgBack, others: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that say why the consumer gave up, if the record has room for them."""
    found = {
        name: "".join(c if c.isprintable() else " " for c in text[:REASON_CHARACTERS_MAX])
        for name, text in (
            (DEAD_LETTER_REASON, command.failure_reason),
            (DEAD_LETTER_ERROR, command.failure_type),
        )
        if text
    }
    size_bytes = len(encode_properties({**others, **found}).encode())
    return found if size_bytes <= PROPERTIES_BYTES_MAX - MARGIN_BYTES else {}


async def ensure_dead_letters(topics: Topics, group: str) -> None:
    """Creates the group's dead-letter topic, on disk and in the data plane."""
    topics.ensure_dead_letter_topic(group)
    await topics.publish([names.dead_letter_topic(group)])
