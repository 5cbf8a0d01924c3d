"""A broker that answers sends as a test scripts it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from metaq._core import FrameDecoder, encode_frame
from metaq.protocol.bodies import BrokerData, QueueData, TopicRouteData

SENDS = (310, 320)
Answer = tuple[int, dict[str, str]]


class WrittenBroker:
    """Name server and broker in one thread; `answer` gives the answer to each send."""

    def __init__(self, answer: Callable[[int], Answer]) -> None:
        self._answer = answer
        self.asked: list[int] = []
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.nodes = {0: self.address}
        """The addresses by broker id in the routes; a test that switches masters changes them."""
        self.others: dict[str, str] = {}
        """Other brokers of the topic: name → address."""
        self.route: Callable[[], dict[int, str]] = lambda: self.nodes
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks[task] = writer
        try:
            with contextlib.suppress(ConnectionError):  # A client may leave at any time.
                await self._converse(reader, writer)
        finally:
            # The garbage collector would close a descriptor that another connection may have by then.
            writer.close()
            del self._talks[task]

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                code, fields, body = 0, {}, b""
                if frame.code == 105:
                    body = TopicRouteData(
                        broker_datas=[
                            BrokerData(broker_addrs=self.route(), broker_name="b"),
                            *(BrokerData({0: address}, name) for name, address in self.others.items()),
                        ],
                        queue_datas=[
                            QueueData(name, read_queue_nums=1, write_queue_nums=1, perm=6)
                            for name in ("b", *self.others)
                        ],
                    ).encode()
                elif frame.code in SENDS:
                    self.asked.append(frame.code)
                    code, fields = self._answer(len(self.asked))
                writer.write(
                    encode_frame(code, opaque=frame.opaque, flag=1, fields=fields, body=body, remark="why")
                )

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for writer in self._talks.values():
            writer.close()
        await asyncio.gather(*self._talks)


STORED = {"msgId": "A,B", "queueId": "0", "queueOffset": "7"}
