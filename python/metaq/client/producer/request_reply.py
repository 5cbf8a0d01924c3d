"""Request and reply over topics: the consumer of a message sends a reply back to its producer."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from metaq._core import Frame
from metaq.client.clock import now_ms
from metaq.client.message import Message, inflate
from metaq.client.producer.options import PreparedSend, ProducerOptions
from metaq.client.producer.sending import Sender
from metaq.client.session.routes import Queue
from metaq.client.session.session import NOT_MINE, Session
from metaq.errors import InvalidMessage, NoReply, UnreadableBody
from metaq.protocol.commands.clients import PushReplyMessageToClient
from metaq.protocol.commands.messages import SendReplyMessageV2
from metaq.protocol.dispatch import Response
from metaq.protocol.names import reply_topic
from metaq.protocol.properties import (
    CLUSTER,
    CORRELATION_ID,
    KEYS,
    MESSAGE_TYPE,
    REPLY_TO,
    SYSTEM_NAMES,
    TAGS,
    TIME_TO_LIVE,
    UNIQUE_KEY,
    decode_properties,
    encode_properties,
)

REPLY: Final = "reply"
REPLY_TIMEOUT_S: Final = 6.0


class Requests:
    """The requests of one producer that wait for their replies."""

    def __init__(self, session: Session, sender: Sender, options: ProducerOptions) -> None:
        self._session = session
        self._sender = sender
        self._options = options
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._announced: set[str] = set()
        session.on_request(PushReplyMessageToClient.code, self._take)

    def stop(self) -> None:
        self._session.remove_handler(PushReplyMessageToClient.code, self._take)

    async def ask(self, prepared: PreparedSend) -> Message:
        """Sends a request and waits for the reply. Raises NoReply and the errors of a send."""
        message, loop = prepared.message, asyncio.get_running_loop()
        deadline = loop.time() + prepared.timeout_s
        await self._announce(message.topic)
        correlation_id = str(uuid.uuid4())
        message.properties |= {
            CORRELATION_ID: correlation_id,
            REPLY_TO: self._session.client_id,
            TIME_TO_LIVE: str(round(prepared.timeout_s * 1000)),
        }
        future: asyncio.Future[Message] = loop.create_future()
        self._waiting[correlation_id] = future
        try:
            await self._sender.send(message, prepared.timeout_s, key=prepared.key, queue=prepared.queue)
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise NoReply(
                f"nobody replied to request {message.id} to {message.topic} within {prepared.timeout_s:g} s",
                hint="does a consumer of the topic reply?",
            ) from None
        finally:
            del self._waiting[correlation_id]

    async def _announce(self, topic: str) -> None:
        """Sends a heartbeat to all brokers of the topic, as any of them may have to pass the reply on."""
        if topic not in self._announced:
            await self._session.routes.get(topic, creatable=True)
            await self._session.beat()
            self._announced.add(topic)

    async def _take(self, address: str, frame: Frame) -> Response | None:
        command = PushReplyMessageToClient.parse(frame.fields)
        properties = decode_properties(command.properties or "")
        future = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if future is None:
            return NOT_MINE
        if future.done():
            return None
        try:
            future.set_result(_message(command, properties, frame.body))
        except UnreadableBody as error:
            future.set_exception(error)
        return None


def require_request(message: Message) -> tuple[str, str, str]:
    """Returns cluster, correlation id and client of a request. Raises InvalidMessage if it is none."""
    asked = message.system_properties
    try:
        return asked[CLUSTER], asked[CORRELATION_ID], asked[REPLY_TO]
    except KeyError as missing:
        raise InvalidMessage(
            f"message {message.id} is not a request that waits for a reply: it has no {missing.args[0]}",
            hint="its sender must use request",
        ) from None


async def send_reply(
    session: Session, group: str, request: Message, body: bytes, timeout_s: float = REPLY_TIMEOUT_S
) -> None:
    """Sends a reply to the producer of a request. Raises InvalidMessage if it is not a request."""
    cluster, correlation_id, reply_to = require_request(request)
    properties = {
        CORRELATION_ID: correlation_id,
        REPLY_TO: reply_to,
        TIME_TO_LIVE: request.system_properties.get(TIME_TO_LIVE, "0"),
        MESSAGE_TYPE: REPLY,
        UNIQUE_KEY: session.unique_ids.next(),
    }
    # The broker of the request is connected to its producer.
    broker = request.queue.broker if request.queue is not None else ""
    if session.routes.address(broker) is None:
        await session.routes.get(request.topic)
    command = SendReplyMessageV2(
        producer_group=group,
        topic=reply_topic(cluster),
        born_timestamp=now_ms(),
        properties=encode_properties(properties),
        broker_name=broker,
    )
    reply = await session.call(broker, command, body, timeout=timeout_s)
    reply.check()


def _message(command: PushReplyMessageToClient, properties: dict[str, str], body: bytes) -> Message:
    return Message(
        topic=command.topic,
        body=inflate(body, command.sys_flag),
        tag=properties.get(TAGS),
        keys=tuple(properties.get(KEYS, "").split()),
        properties={name: value for name, value in properties.items() if name not in SYSTEM_NAMES},
        id=properties.get(UNIQUE_KEY, ""),
        queue=Queue(command.topic, "", command.queue_id),
        born_at=command.born_timestamp,
        stored_at=command.store_timestamp,
        born_host=command.born_host,
        store_host=command.store_host,
        flag=command.flag,
        system_flag=command.sys_flag,
        system_properties={name: value for name, value in properties.items() if name in SYSTEM_NAMES},
    )
