"""Recall of a message that waits for its time (370). crates/server/src/timer/recall.rs stores it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

from metaq._core import BrokerPlane, Clock, StoreFailure
from metaq.broker.options import BrokerOptions
from metaq.broker.state.recall_key import is_signed, recall_key
from metaq.broker.state.topics import Topics
from metaq.journal import Journal
from metaq.protocol.bodies import WRITE
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.messages import Recalled, RecallMessage
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.properties import REGION
from metaq.work_pools import WorkPools

HANDLE_CHARACTERS_MAX = 4096
PARTS = 5


@dataclass(frozen=True, slots=True)
class Handle:
    """The handle of a waiting message: url-safe base64 of `v1 topic broker time key signature`."""

    topic: str
    broker: str
    due_ms: int
    unique_key: str
    signed: str = ""
    """The text that the signature is of."""
    signature: str = ""
    """Empty if there is none, as in the handles of Apache's brokers."""

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Raises ValueError for a bad handle. A time that is not a number becomes −1, which is always
        over."""
        if not text or len(text) > HANDLE_CHARACTERS_MAX:
            raise ValueError("the recall handle is empty or too long")
        try:
            plain = base64.b64decode(
                text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
            )
            parts = plain.decode().split(" ")
        except (binascii.Error, UnicodeError):
            raise ValueError("the recall handle is not what a send was answered with") from None
        if len(parts) < PARTS or parts[0] != "v1" or not all(parts[:PARTS]):
            raise ValueError("the recall handle is not what a send was answered with")
        _, topic, broker, due, unique_key = parts[:PARTS]
        try:
            due_ms = int(due)
        except ValueError:
            due_ms = -1
        return cls(
            topic,
            broker,
            due_ms,
            unique_key,
            signed=" ".join(parts[:PARTS]),
            signature=parts[PARTS] if len(parts) > PARTS else "",
        )


class Recalls:
    """Checks recalls and stores them. The codes are the same as on Apache's broker."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        plane: BrokerPlane,
        topics: Topics,
        permission: Callable[[], int],
        journal: Journal,
        pools: WorkPools,
    ) -> None:
        self._options = options
        self._journal = journal
        self._permission = permission
        self._clock = clock
        self._plane = plane
        self._topics = topics
        self._pools = pools

    @handles(RecallMessage)
    async def recall_message(self, command: RecallMessage, request: Request) -> Response:
        broker = self._options.broker
        if not broker.recall_messages:
            raise Refused(
                ResponseCode.NO_PERMISSION, "this broker does not let messages be recalled (recall_messages)"
            )
        if not self._permission() & WRITE:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {broker.name} takes no writes, and so no recalls"
            )
        if command.topic not in self._topics:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {command.topic[:128]} does not exist")
        handle = self._checked(command)
        try:
            outcome = await self._pools.storing.run(
                request,
                lambda: self._plane.recall(
                    handle.topic,
                    handle.unique_key,
                    handle.due_ms,
                    producer_group=command.producer_group,
                    born_host=request.remote,
                ),
            )
        except StoreFailure as failure:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the recall was not stored: {failure}") from failure
        if outcome == "late":
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "the message's time has come: it is delivered")
        if outcome == "before":
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "the message was recalled before")
        fields = Recalled(msg_id=handle.unique_key).to_fields()
        return Response(fields=fields | {REGION: broker.region})

    def _checked(self, command: RecallMessage) -> Handle:
        try:
            handle = Handle.decode(command.recall_handle)
        except ValueError as error:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != command.topic:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the recall handle is of topic {handle.topic[:128]}, not of {command.topic[:128]}",
            )
        if handle.broker != self._options.broker.name:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the message is on broker {handle.broker[:128]}: recall it there",
            )
        if not is_signed(recall_key(self._journal), handle.signed, handle.signature):
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "this broker did not make the recall handle: recall with the handle that the send returned",
            )
        left_ms = handle.due_ms - self._clock.now_ms()
        if not 0 < left_ms <= self._options.broker.timer_max_delay_s * 1000:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "the message's time has come: it is delivered"
                if left_ms <= 0
                else "the recall handle names a time that no message of this broker can wait for",
            )
        return handle
