"""What `send_soon` makes of the answers of a broker that a test has written down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import metaq
from metaq._core import FrameDecoder, SendFuture, encode_frame
from metaq.errors import InvalidMessage, NotDelivered, NotDurable, NotSent
from metaq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from metaq.protocol.errors import Refused

SENDS = (310, 320)
Answer = tuple[int, dict[str, str]]


class Broker:
    """Name server and broker in one, in a thread; `answer` says what to say to each send."""

    def __init__(self, answer: Callable[[int], Answer]) -> None:
        self._answer = answer
        self.asked: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                code, fields, body = 0, {}, b""
                if frame.code == 105:
                    body = TopicRouteData(
                        broker_datas=[BrokerData(broker_addrs={0: self.address}, broker_name="b")],
                        queue_datas=[QueueData("b", read_queue_nums=1, write_queue_nums=1, perm=6)],
                    ).encode()
                elif frame.code in SENDS:
                    self.asked.append(frame.code)
                    code, fields = self._answer(len(self.asked))
                writer.write(
                    encode_frame(code, opaque=frame.opaque, flag=1, fields=fields, body=body, remark="why")
                )

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


STORED = {"msgId": "A,B", "queueId": "0", "queueOffset": "7"}


@pytest.fixture
def broker() -> Iterator[Callable[[Callable[[int], Answer]], Broker]]:
    made: list[Broker] = []

    def make(answer: Callable[[int], Answer]) -> Broker:
        made.append(Broker(answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


def send_two(address: str, **options: Any) -> list[SendFuture]:
    with metaq.Client(address) as client, client.producer("g", linger=0.02, **options) as producer:
        producer.send_soon("t", b"warm").exception()
        futures = [producer.send_soon("t", b"1"), producer.send_soon("t", b"2")]
        with pytest.raises(NotDelivered) if any(future.exception() for future in futures) else _nothing():
            producer.flush()
        return futures


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_what_is_stored_less_safely_is_an_error_unless_it_is_accepted(broker: Any) -> None:
    served = broker(lambda _: (10, STORED))
    for future in send_two(served.address):
        error = future.exception()
        assert isinstance(error, NotDurable)
        assert error.result.queue_offset == 7
        with pytest.raises(NotDurable):
            future.result()
    before = len(served.asked)
    results = [future.result() for future in send_two(served.address, accept=["flush-timeout"])]
    assert [result.status for result in results] == [metaq.SendStatus.FLUSH_TIMEOUT] * 2
    assert [(result.queue_offset, result.offset_id) for result in results] == [(7, "A"), (8, "B")]
    assert len(served.asked) - before == 2, "to send it again would store it twice"


def test_what_a_broker_refuses_for_now_is_tried_again(broker: Any) -> None:
    served = broker(lambda number: (2, {}) if number % 2 else (0, STORED))
    assert [future.result().queue_offset for future in send_two(served.address)] == [7, 8]
    assert len(served.asked) > 2


def test_what_a_broker_refuses_for_good_is_not(broker: Any) -> None:
    served = broker(lambda _: (13, {}))
    for future in send_two(served.address):
        with pytest.raises(Refused, match="why"):
            future.result()
    assert len(served.asked) <= 3


def test_an_odd_answer_is_an_error(broker: Any) -> None:
    served = broker(lambda _: (0, {"msgId": "A"}))
    for future in send_two(served.address):
        with pytest.raises(Refused, match="queueId"):
            future.result()


def test_what_is_checked_at_the_call_is_checked_on_the_short_way_too(broker: Any) -> None:
    served = broker(lambda _: (0, STORED))
    with metaq.Client(served.address) as client, client.producer("g") as producer:
        producer.send_soon("t", b"1").result()
        for arguments, options, rule in (
            (("t", "text"), {}, "bytes, not str"),
            (("t", None), {}, "bytes, not NoneType"),
            ((None, b"x"), {}, "str, not NoneType"),
            (("t", bytes(5_000_000)), {}, "too large"),
            (("t", b"x"), {"tag": "a||b"}, "separates tags"),
            (("t", b"x"), {"tag": ""}, "empty"),
            (("t", b"x"), {"tag": 3}, "str, not int"),
            (("t", b"x"), {"key": "a\x01"}, "sharding key"),
            (("t", b"x"), {"key": 3}, "sharding key"),
            (("t", b"x"), {"keys": ["a", "b c"]}, "white space"),
            (("t", b"x"), {"keys": ["a\u2003b"]}, "white space"),
            (("t", b"x"), {"keys": [3]}, "str, not int"),
            (("t", b"x"), {"tag": "x" * 40_000}, "32767"),
        ):
            with pytest.raises(InvalidMessage, match=rule):
                producer.send_soon(*arguments, **options)
        with pytest.raises(TypeError, match="colour"):
            producer.send_soon("t", b"x", colour="red")
        assert producer.send_soon("t", bytearray(b"x"), keys="grün").result().queue.topic == "t"


def test_a_buffer_that_stays_full_is_told_at_the_call(broker: Any) -> None:
    silent = threading.Event()

    def answer(_: int) -> Answer:
        silent.wait(20)
        return 0, STORED

    served = broker(answer)
    with metaq.Client(served.address) as client, client.producer("g", buffer_bytes_max=1000) as producer:
        futures = [producer.send_soon("t", bytes(400)) for _ in range(2)]
        with pytest.raises(NotSent, match="was full for"):
            producer.send_soon("t", bytes(400), timeout=0.2)
        silent.set()
        for future in futures:
            future.result()
        assert producer.send_soon("t", bytes(400)).result().queue.id == 0
