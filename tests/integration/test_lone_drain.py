"""The drain of a lone broker: no more messages, clients may finish, and then it stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import MetaqError
from tests.support.clients import send
from tests.support.invoking import CommandLine
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until


def test_it_waits_for_consumers_takes_no_messages_and_stops(tmp_path: Path) -> None:
    serving = Metaq.serve(tmp_path)
    try:
        with Admin(serving.nameserver) as admin:
            admin.topics.create("orders", queues=1)
            asyncio.run(send(serving.broker, "orders", "one"))
            with metaq.Client(serving.nameserver) as client:
                subscribed = client.subscribe("orders", group="g", start="earliest")
                with subscribed as messages:
                    found = iter(messages)
                    assert next(found).body == b"one"
                    group = admin.brokers.drain("broker-a", wait_s=600)
                    assert group is not None and group.nodes[0].state == "leaving"
                    assert serving.child.alive, "a client is connected"
                    with client.producer() as producer, pytest.raises(MetaqError):
                        producer.send("orders", b"two")
        wait_until(lambda: not serving.child.alive)
        assert serving.child.process.wait() == 0
        assert "drained: waits for" in serving.child.tail()
    finally:
        if serving.child.alive:
            serving.stop()
    again = Metaq.serve(tmp_path)
    try:
        asyncio.run(send(again.broker, "orders", "three"))
    finally:
        again.stop()


def test_the_command_shows_progress_and_ends_with_the_broker(tmp_path: Path) -> None:
    serving = Metaq.serve(tmp_path)
    try:
        with metaq.Client(serving.nameserver) as client, client.subscribe("TBW102", group="g"):
            with Admin(serving.nameserver) as admin:
                wait_until(lambda: bool(admin.brokers.clients("broker-a").clients))
            done = CommandLine(serving.nameserver).invoke("broker", "drain", "broker-a", "--wait", "1")
        assert done.exit_code == 0, (done.output, done.exception)
        assert "takes no messages any more" in done.stderr and "1 client still connected" in done.stderr
        assert "is drained and has stopped" in done.stdout
        wait_until(lambda: not serving.child.alive)
    finally:
        if serving.child.alive:
            serving.stop()
