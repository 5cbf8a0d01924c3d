"""Clients of every language that send one message after another through the faults, and consumers beside
them. Each stream notes what was acknowledged, and every error that its user would see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import metaq
from tests.interop.clients import Clients, Producer, PushConsumer, Stream
from tests.interop.driver import ClientError, Driver
from tests.interop.programs import start_go, start_java
from tests.support.servers import Cluster
from tests.support.waiting import wait_until

PAUSE_S = 0.01
CONSUMED_TIMEOUT_S = 90
JAVA = (("5.5.0", "binary"), ("4.9.8", "json"))


class MessageStream(Protocol):
    """A producer that sends until it is stopped."""

    name: str

    @property
    def acknowledged(self) -> Sequence[str]: ...
    @property
    def errors(self) -> Sequence[str]: ...
    def stop(self) -> None: ...


class _ThreadStream:
    """Sends in a thread of the test."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[str] = []
        self.times: list[float] = []
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def _send(self, body: str) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(PAUSE_S):
            body = f"{self.name}-{number}"
            number += 1
            try:
                self._send(body)
            except (metaq.MetaqError, ClientError) as error:
                self.errors.append(f"{time.strftime('%X')} {error}")
            else:
                self.acknowledged.append(body)
                self.times.append(time.monotonic())


class PythonStream(_ThreadStream):
    """Our client. `timeout_s` is the user's patience with one message."""

    def __init__(self, namesrv: str, topic: str, timeout_s: float = 15.0, name: str = "python") -> None:
        super().__init__(name)
        self._topic, self._timeout_s = topic, timeout_s
        self._client = metaq.Client(namesrv)
        self._client.start()
        self._producer = self._client.producer(f"{name}-{topic}")
        self._producer.start()

    def _send(self, body: str) -> None:
        self._producer.send(self._topic, body.encode(), timeout=self._timeout_s)

    def stop(self) -> None:
        super().stop()
        self._producer.close()
        self._client.close()

    def pause_after(self, moment: float) -> float:
        """Waits until messages are acknowledged again; returns the longest time without any since then."""
        wait_until(lambda: self.times and self.times[-1] > moment + 0.1, 60, "a message after the fault")
        after = [moment, *(at for at in self.times if at > moment)]
        return max(later - earlier for earlier, later in pairwise(after))


class GoStream(_ThreadStream):
    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__("go")
        self._producer, self._topic = producer, topic

    def _send(self, body: str) -> None:
        [sent] = self._producer.send(self._topic, [{"body": body}])
        if sent["status"] not in ("SEND_OK", "SendOK"):
            raise metaq.MetaqError(f"status {sent['status']}")


class JavaStream:
    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self._stream = stream

    @property
    def acknowledged(self) -> list[str]:
        return [event["body"] for event in self._stream.acknowledged if event["status"] == "SEND_OK"]

    @property
    def errors(self) -> list[str]:
        doubtful = [event for event in self._stream.acknowledged if event["status"] != "SEND_OK"]
        return [str(event) for event in [*self._stream.refused, *doubtful]]

    def stop(self) -> None:
        self._stream.stop()


class AllClients:
    """A producer and a consumer of every language, each consumer in a group of its own."""

    def __init__(
        self, namesrv: str, topic: str, home: Path, stack: ExitStack, **java_options: object
    ) -> None:
        cluster = Cluster([_Address(namesrv)], {})  # type: ignore[list-item]
        self._python: list[str] = []
        self.streams: list[MessageStream] = []
        self._consumers: dict[str, PushConsumer] = {}
        client = stack.enter_context(metaq.Client(namesrv))
        client.consumer(topic, group="python", start="earliest")(self._got)
        for version, encoding in JAVA:
            name = f"java-{version}"
            java = Clients(stack.enter_context(closing(start_java(version, encoding, home / name))), cluster)
            stack.callback(java.close)
            options = {"route_interval_ms": 30_000, **java_options}
            self._consumers[name] = _patiently(
                lambda java=java, name=name, options=options: java.push_consumer(
                    topic, group=name.replace(".", "_"), **options
                )
            )
            self.streams.append(JavaStream(name, java.stream(topic, pause_ms=10, **options)))
        go = Clients(stack.enter_context(closing(start_go(home / "go"))), cluster)
        stack.callback(go.close)
        self._consumers["go"] = go.push_consumer(topic, group="go")
        threads = [GoStream(go.producer(), topic), PythonStream(namesrv, topic)]
        for thread in threads:
            thread.start()
            self.streams.append(thread)

    def _got(self, message: metaq.Message) -> None:
        self._python.append(message.body.decode())

    def consumed(self) -> dict[str, set[str]]:
        """Returns the bodies that the consumers of each language got."""
        found = {"python": set(self._python)}
        for name, consumer in self._consumers.items():
            found[name] = {message["body"] for message in consumer.messages}
        return found

    def wait_for_more(self, count: int = 20) -> None:
        """Waits until every stream has that many more acknowledged messages."""
        wanted = {stream.name: len(stream.acknowledged) + count for stream in self.streams}
        wait_until(
            lambda: all(len(stream.acknowledged) >= wanted[stream.name] for stream in self.streams),
            CONSUMED_TIMEOUT_S,
            f"{count} messages more of every client: "
            + str({stream.name: list(stream.errors)[-2:] for stream in self.streams}),
        )

    def finish(self) -> dict[str, int]:
        """Stops the producers and waits until every consumer got every acknowledged message.

        Returns how many messages each producer sent.
        """
        for stream in self.streams:
            stream.stop()
        wanted = {body for stream in self.streams for body in stream.acknowledged}

        def missing() -> dict[str, int]:
            return {name: len(wanted - got) for name, got in self.consumed().items()}

        wait_until(lambda: not any(missing().values()), CONSUMED_TIMEOUT_S, f"all consumed, not {missing()}")
        return {stream.name: len(stream.acknowledged) for stream in self.streams}

    def errors(self) -> dict[str, list[str]]:
        return {stream.name: list(stream.errors) for stream in self.streams}


def _patiently(start: Callable[[], PushConsumer]) -> PushConsumer:
    """Starts a client; a Java client of 4.9.8 gives up if the first answer takes a busy machine 3 s."""
    for _ in range(4):
        with suppress(ClientError):
            return start()
    return start()


class _Address:
    def __init__(self, address: str) -> None:
        self.address = address


@contextmanager
def closing(driver: Driver) -> Iterator[Driver]:
    try:
        yield driver
    finally:
        driver.close()
