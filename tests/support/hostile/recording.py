"""Records the requests that MetaQ's own client and commands send, as seeds for mutated frames."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import metaq
from tests.support.processes import free_port

FRAME_BYTES_KEPT = 64 * 1024
FRAMES_KEPT = 400
TOPIC, GROUP = "recorded", "recorded"


class _Relay:
    """Passes bytes on between clients and one server, and keeps the frames that the clients send."""

    def __init__(self, server: str, frames: list[bytes], renames: dict[bytes, bytes]) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._frames, self._renames = frames, renames
        self._listening = socket.create_server(("127.0.0.1", free_port()))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        sent = bytearray()
        with client, server, contextlib.suppress(OSError):
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for one in readable:
                    data = one.recv(1 << 20)
                    if not data:
                        return
                    if one is client:
                        sent += data
                        self._keep_frames(sent)
                        server.sendall(data)
                    else:
                        # Both names have the same length, so no length in the frame changes.
                        for name, other in self._renames.items():
                            data = data.replace(name, other)
                        client.sendall(data)

    def _keep_frames(self, sent: bytearray) -> None:
        while len(sent) >= 4:
            size = 4 + struct.unpack_from(">I", sent)[0]
            if len(sent) < size:
                return
            if size <= FRAME_BYTES_KEPT and len(self._frames) < FRAMES_KEPT:
                self._frames.append(bytes(sent[:size]))
            del sent[:size]


@contextmanager
def _recorded(broker: str, nameserver: str) -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    to_broker: list[bytes] = []
    to_names: list[bytes] = []
    broker_relay = _Relay(broker, to_broker, {})
    assert len(broker_relay.address) == len(broker), "the relay's address must be as long as the broker's"
    names_relay = _Relay(nameserver, to_names, {broker.encode(): broker_relay.address.encode()})
    try:
        yield names_relay.address, to_broker, to_names
    finally:
        broker_relay.close()
        names_relay.close()


def record(broker: str, nameserver: str) -> tuple[list[bytes], list[bytes]]:
    """Returns frames for the broker and for the name server."""
    with _recorded(broker, nameserver) as (address, to_broker, to_names):
        with metaq.Client(address) as client:
            _send(client)
            _consume(client)
        for command in (
            ["send", TOPIC, "text", "--key", "k"],
            ["topic", "list"],
            ["group", "list"],
            ["cluster", "list"],
        ):
            subprocess.run(
                [sys.executable, "-m", "metaq", *command],
                env={**os.environ, "METAQ_NAMESRV": address},
                capture_output=True,
                timeout=60,
                check=False,
            )
    return to_broker, to_names


def _send(client: metaq.Client) -> None:
    with client.producer(GROUP) as producer:
        for number in range(4):
            producer.send(TOPIC, b"body" * 20, keys=[f"key-{number}"], tag="a", properties={"n": str(number)})
        producer.send(TOPIC, b"later", delay=1)
        for _ in range(20):
            producer.send_soon(TOPIC, b"soon" * 20)
        producer.flush()


def _consume(client: metaq.Client) -> None:
    failed = threading.Event()

    @client.consumer(TOPIC, group=GROUP, start="earliest", sql="n > 0")
    def handle(message: metaq.Message) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("give this one back")

    client.start()
    failed.wait(20)
    handle.close()
    with client.puller(group=GROUP, start="earliest") as puller:
        puller.assign(TOPIC)
        puller.poll(1, count=50)
        puller.commit()
