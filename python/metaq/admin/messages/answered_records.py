"""The stored messages in the answer of a broker. A broker that sends something else has made an error, which
callers report like any other."""

from __future__ import annotations

from metaq._core import FrameError, Message, Record, decode_messages, decode_records
from metaq.client.session.routes import Queue
from metaq.protocol.errors import ProtocolError


def messages_in(body: bytes, queue: Queue) -> list[Message]:
    """Returns the messages of one queue; one of a retry topic shows that topic and not the one it had first.
    Raises ProtocolError."""
    try:
        return decode_messages(body, queue, shows_first_topic=False)[0]
    except FrameError as error:
        raise _malformed(queue.broker, error) from None


def records_in(body: bytes, broker: str) -> list[Record]:
    """Returns the records as they are stored. Raises ProtocolError."""
    try:
        return decode_records(body)
    except FrameError as error:
        raise _malformed(broker, error) from None


def _malformed(broker: str, error: FrameError) -> ProtocolError:
    return ProtocolError(f"broker {broker} sent a malformed message: {error}")
