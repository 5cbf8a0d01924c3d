"""Replies to requests between clients: each reply goes back to the client that asked."""

from __future__ import annotations

from metaq._core import Clock
from metaq.broker.options import BrokerOptions
from metaq.broker.state.clients import Clients
from metaq.broker.state.runtime_switches import Switches
from metaq.broker.state.topics import Topics
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.clients import PushReplyMessageToClient
from metaq.protocol.commands.messages import SendReplyMessage, SendReplyMessageV2, Sent
from metaq.protocol.dispatch import RESPONDED, Request, Response, handles
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.handling.pump import Pump
from metaq.protocol.properties import (
    REGION,
    REPLY_PUSHED_MS,
    REPLY_TO,
    TRACE_ON,
    decode_properties,
    encode_properties,
)

PROPERTIES_BYTES_MAX = 32_767
"""As many as any message may have."""


class Replies:
    """Pushes replies to the producers that wait for them."""

    def __init__(
        self,
        pump: Pump,
        clients: Clients,
        topics: Topics,
        clock: Clock,
        switches: Switches,
        address: str,
        options: BrokerOptions,
    ) -> None:
        self._pump = pump
        self._clients = clients
        self._topics = topics
        self._clock = clock
        self._switches = switches
        self._address = address
        self._region = options.broker.region
        self._timeout_s = options.reply_timeout_s
        self._body_bytes_max = options.store.message_size_bytes_max

    def _properties(self, text: str) -> dict[str, str]:
        # Measured first: to read a megabyte of them takes a long turn of the event loop.
        size_bytes = len(text.encode())
        if size_bytes > PROPERTIES_BYTES_MAX:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties of the reply have {size_bytes} bytes, the limit is {PROPERTIES_BYTES_MAX}",
            )
        return decode_properties(text)

    @handles(SendReplyMessage, SendReplyMessageV2)
    async def send_reply_message(
        self, command: SendReplyMessage | SendReplyMessageV2, request: Request
    ) -> Response:
        if len(request.body) > self._body_bytes_max:
            # Its requester would close the connection over a frame that is too long for it.
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body of the reply has {len(request.body)} bytes, the limit is {self._body_bytes_max} "
                "(message_size_bytes_max)",
            )
        properties = self._properties(command.properties or "")
        requester = properties.get(REPLY_TO)
        if requester is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the reply has no property {REPLY_TO}: make it from the request it answers",
            )
        connection = self._clients.producer_connection(requester)
        if connection is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"{requester[:128]}, which asked, is not connected to this broker"
            )
        now_ms = self._clock.now_ms()
        properties[REPLY_PUSHED_MS] = str(now_ms)
        push = PushReplyMessageToClient(
            producer_group=command.producer_group,
            topic=command.topic,
            default_topic=command.default_topic,
            default_topic_queue_nums=command.default_topic_queue_nums,
            queue_id=command.queue_id,
            sys_flag=command.sys_flag,
            born_timestamp=command.born_timestamp,
            flag=command.flag,
            born_host=request.remote,
            store_host=self._address,
            store_timestamp=now_ms,
            properties=encode_properties(properties),
            reconsume_times=command.reconsume_times,
            unit_mode=command.unit_mode,
        )
        with self._pump.waiting_for_client(len(request.body)):
            try:
                (await self._pump.invoke(connection, push, request.body, self._timeout_s)).check()
            except (Unreachable, Refused) as error:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{requester[:128]}, which asked, did not take the reply: {error}",
                ) from None
        if self._switches.store_replies and command.topic in self._topics:
            request.retry()
            return RESPONDED
        sent = Sent(msg_id="0", queue_id=max(command.queue_id, 0), queue_offset=0)
        return Response(fields={**sent.to_fields(), REGION: self._region, TRACE_ON: "true"})
