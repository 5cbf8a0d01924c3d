"""`python -m bench.soak.client FORM NAMESERVER TOPIC SECONDS`: sends and reads as fast as it can.

It ends on SIGTERM, or when its time is over, and prints how many messages came back.
Sending waits while too many are on their way, so that neither side runs ahead of the other for an hour.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import metaq
from metaq import aio

BODY = b"x" * 128
BLOCK = 200
UNREAD_MAX = {"poll": 200_000, "aio": 100_000, "handler": 10_000, "iteration": 10_000}
"""Messages in flight: enough that no reader waits. The rest is read at the end."""
STALL_S = 120.0
DRAIN_S = 60.0
FLOWING = "FLOWING"
RESULT = "RESULT "
_PAUSE_S = 0.001
_LEAK_BYTES = 1_000_000
_LEAKS_PER_S = 50


class Flow:
    """How many messages were sent and how many came back."""

    def __init__(self, seconds: float, unread_max: int) -> None:
        self._unread_max = unread_max
        self._deadline = time.monotonic() + seconds
        self._is_flowing = False
        self.sent = 0
        self._received: Counter[int] = Counter()
        self._moved_at = time.monotonic()
        self._moved_count = -1

    def receive(self, count: int = 1) -> None:
        # Each thread has its own counter, so no lock is needed.
        self._received[threading.get_ident()] += count

    @property
    def received(self) -> int:
        return sum(list(self._received.values()))

    def stop(self) -> None:
        self._deadline = 0.0

    def goes_on(self) -> bool:
        return time.monotonic() < self._deadline

    def may_send(self) -> bool:
        """Raises RuntimeError if nothing has arrived for a long time."""
        received = self.received
        now = time.monotonic()
        if received != self._moved_count:
            self._moved_at, self._moved_count = now, received
            if received and not self._is_flowing:
                self._is_flowing = True
                print(FLOWING, flush=True)
        elif now - self._moved_at > STALL_S:
            raise RuntimeError(f"{self.sent} messages sent, {received} received, and none for {STALL_S} s")
        return self.sent - received < self._unread_max

    def drained(self) -> bool:
        return self.received >= self.sent

    def told(self) -> str:
        return RESULT + json.dumps({"sent": self.sent, "received": self.received})


def run_plain(form: str, nameserver: str, topic: str, flow: Flow) -> None:
    with metaq.Client(nameserver) as client:
        stop = threading.Event()
        reader = threading.Thread(target=_READERS[form], args=(client, topic, flow, stop))
        reader.start()
        try:
            with client.producer("soak") as producer:
                while flow.goes_on():
                    if not flow.may_send():
                        time.sleep(_PAUSE_S)
                        continue
                    for _ in range(BLOCK):
                        producer.send_soon(topic, BODY)
                    flow.sent += BLOCK
                producer.flush()
            end = time.monotonic() + DRAIN_S
            while not flow.drained() and time.monotonic() < end:
                time.sleep(_PAUSE_S)
        finally:
            stop.set()
            reader.join()


def _poll(client: metaq.Client, topic: str, flow: Flow, stop: threading.Event) -> None:
    with client.puller(group="soak_poll", start="earliest") as puller:
        puller.assign(topic)
        committed_at = time.monotonic()
        while not stop.is_set():
            messages = puller.poll(0.5, count=1000)
            flow.receive(sum(len(message.body) == len(BODY) for message in messages))
            if time.monotonic() - committed_at > 1:
                puller.commit()
                committed_at = time.monotonic()


def _handle(client: metaq.Client, topic: str, flow: Flow, stop: threading.Event) -> None:
    @client.consumer(topic, group="soak_handler", start="earliest")
    def handle(message: metaq.Message) -> None:
        flow.receive(len(message.body) == len(BODY))

    stop.wait()
    handle.close()


def _iterate(client: metaq.Client, topic: str, flow: Flow, stop: threading.Event) -> None:
    while not stop.is_set():
        with client.subscribe(topic, group="soak_iteration", start="earliest", idle_timeout=1) as messages:
            for message in messages:
                flow.receive(len(message.body) == len(BODY))


_READERS: dict[str, Callable[[metaq.Client, str, Flow, threading.Event], None]] = {
    "poll": _poll,
    "handler": _handle,
    "iteration": _iterate,
}
FORMS = (*_READERS, "aio")


async def run_asyncio(nameserver: str, topic: str, flow: Flow) -> None:
    async with aio.Client(nameserver) as client:

        async def read() -> None:
            async with client.puller(group="soak_aio", start="earliest") as puller:
                await puller.assign(topic)
                committed_at = time.monotonic()
                while True:
                    messages = await puller.poll(0.5, count=1000)
                    flow.receive(sum(len(message.body) == len(BODY) for message in messages))
                    if time.monotonic() - committed_at > 1:
                        await puller.commit()
                        committed_at = time.monotonic()

        reader = asyncio.create_task(read())
        async with client.producer("soak") as producer:
            while flow.goes_on():
                if not flow.may_send():
                    await asyncio.sleep(_PAUSE_S)
                    continue
                for _ in range(BLOCK):
                    await producer.send_soon(topic, BODY)
                flow.sent += BLOCK
                # While the buffer has space, a send does not yield to other tasks.
                await asyncio.sleep(0)
            await producer.flush()
        end = time.monotonic() + DRAIN_S
        while not flow.drained() and not reader.done() and time.monotonic() < end:
            await asyncio.sleep(_PAUSE_S)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


def leak() -> None:
    """Leaks memory and file descriptors, for the soak to find; it leaks at a fixed rate per second,
    however rarely this thread gets to run."""
    kept: list[tuple[bytes, int]] = []
    began = time.monotonic()
    while True:
        while len(kept) < (time.monotonic() - began) * _LEAKS_PER_S:
            kept.append((b"x" * _LEAK_BYTES, os.open(os.devnull, os.O_RDONLY)))
        time.sleep(0.02)


def main() -> int:
    form, nameserver, topic, seconds, *flags = sys.argv[1:]
    if "--leak" in flags:
        threading.Thread(target=leak, daemon=True).start()
    flow = Flow(float(seconds), UNREAD_MAX[form])
    signal.signal(signal.SIGTERM, lambda *_: flow.stop())
    if form == "aio":
        asyncio.run(run_asyncio(nameserver, topic, flow))
    else:
        run_plain(form, nameserver, topic, flow)
    print(flow.told(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
