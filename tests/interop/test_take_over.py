"""Moving a running Apache broker to ours as docs/from-rocketmq.md shows it, with clients that live on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.clients import (
    Clients,
    Message,
    Producer,
    bodies,
    numbered,
    unique,
    wait_for_bodies,
)
from tests.interop.driver import ClientError, Driver
from tests.interop.kinds import newest_once
from tests.support import apache
from tests.support.metaq import Metaq, run
from tests.support.processes import free_port
from tests.support.servers import Cluster, uses_apache
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(uses_apache(), reason="this test starts both kinds of servers")
FILE_BYTES = 1024 * 1024
SMALL = {"mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 20_000}
ROUTES = {"route_interval_ms": 1_000}
"""Java clients look for new routes every 30 s by default."""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Cluster]:
    """Apache's name server and broker."""
    nameserver = apache.start_nameserver(tmp_path / "nameserver", jvm_flags=apache.SHORT_LIVED)
    broker = apache.start_broker(
        tmp_path / "apache",
        [nameserver.address],
        heap="512m",
        jvm_flags=apache.SHORT_LIVED,
        settings=SMALL,
    )
    yield Cluster([nameserver], {"broker-a": broker})
    broker.stop()
    nameserver.stop()


def start_copy(home: Path, old: Cluster, listen: str) -> Metaq:
    identity = ("--name", "broker-a", "--namesrv", old.namesrv, "--listen", listen)
    source = ("--apache-master", old.brokers["broker-a"].address, "--data", str(home / "ours"))
    return Metaq("broker", *identity, *source, "--set", f"commit_log_file_bytes={FILE_BYTES}", home=home)


def take_over(broker: Metaq) -> subprocess.CompletedProcess[str]:
    return run("broker", "take-over", broker.broker)


@newest_once
def test_clients_live_on_when_our_broker_takes_over(
    tmp_path: Path, old: Cluster, java_driver: Driver
) -> None:
    java = Clients(java_driver, old)
    topic, group = java.topic(queues=2), unique("billing")
    producer = java.producer(**ROUTES)
    consumer = java.push_consumer(topic, group=group, **ROUTES)
    first = [{**message, "properties": {"padding": "x" * 20_000}} for message in numbered(120, "first")]
    producer.send(topic, first)
    wait_for_bodies([consumer], bodies(first))
    java.wait_for_committed(group, topic, [60, 60])

    listen = f"127.0.0.1:{free_port(neighbours=(-2,))}"
    new = start_copy(tmp_path, old, listen)
    try:
        second = numbered(10, "while it copies")
        sent = producer.send(topic, second)
        assert {each["status"] for each in sent} == {"SEND_OK"}
        early = take_over(new)
        assert early.returncode == 1 and "cannot take over" in early.stderr, early
        assert f"{listen} copies broker-a from {old.brokers['broker-a'].address}, which runs" in early.stdout
        # Consumers read on from Apache's broker while no message is sent.
        wait_for_bodies([consumer], bodies(second))
        java.wait_for_committed(group, topic, [65, 65])
        ready = eventually(
            lambda: take_over(new), lambda done: "still runs" in done.stderr, 60, "ready to take over"
        )
        assert ready.returncode == 1 and "stop it in order" in ready.stderr
        old.brokers["broker-a"].stop()
        done = take_over(new)
        assert done.returncode == 0, done
        assert f"{listen} is master of broker-a" in done.stdout

        # The same clients go on, at the next offset of each queue.
        third = numbered(10, "after the take-over")
        sent = eventually(lambda: send(producer, topic, third[:1]), bool, 60, "sent")
        sent += producer.send(topic, third[1:])
        ends = [65, 65]
        for each in sent:
            assert each["queue_offset"] == ends[each["queue_id"]]
            ends[each["queue_id"]] += 1
        found = wait_for_bodies([consumer], bodies(third))
        assert sorted(bodies(found)) == sorted(bodies(first) + bodies(second) + bodies(third))

        # The option has no effect any more.
        assert new.stop() == 0, new.child.tail()
        new = start_copy(tmp_path, old, listen)
        assert "has no effect any more" in new.child.tail()
        assert f"{listen} is master of broker-a already" in take_over(new).stdout
        java.wait_for_committed(group, topic, ends)
    finally:
        java.close()
        assert new.stop() == 0, new.child.tail()


def send(producer: Producer, topic: str, messages: list[Message]) -> list[Message]:
    """Sends as soon as the producer knows the new address; until then, returns nothing."""
    try:
        sent: list[Message] = producer.send(topic, messages)
        return sent
    except ClientError:
        return []
