"""Apache Kafka as a child process: one node that is broker and controller, with a store of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.servers import BrokerUnderTest
from tests.support.maven import REPOSITORY_ROOT, classpath, java
from tests.support.processes import Child, free_port

POM = Path(__file__).parent / "pom.xml"
VERSION = "4.3.1"
READY_TIMEOUT_S = 60
FORMAT_TIMEOUT_S = 60
TOPIC_TIMEOUT_S = 30
_CLUSTER_ID = "bWV0YXFfYmVuY2gtLS0tLQ"
"""Any 16 bytes in base64."""

# The options that Kafka's own start script gives its broker.
_HEAP = "1g"
_JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)


def kafka_classpath() -> str:
    """Broker, clients and tools; fetched by Maven the first time."""
    return classpath(POM, REPOSITORY_ROOT / "build" / "kafka")


def java_command(
    main_class: str, *arguments: str, heap: str = _HEAP, jvm_flags: Sequence[str] = _JVM_FLAGS
) -> list[str]:
    return [
        java(),
        f"-Xms{heap}",
        f"-Xmx{heap}",
        *jvm_flags,
        "-cp",
        kafka_classpath(),
        main_class,
        *arguments,
    ]


class KafkaBroker(BrokerUnderTest):
    """All settings keep their defaults. So the system decides when data reaches the disk, much as with our
    `flush=async`."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.store = home / "store"
        home.mkdir(parents=True)
        port = free_port(neighbours=(1,))
        self.broker = self.nameserver = f"127.0.0.1:{port}"
        settings = home / "server.properties"
        settings.write_text("\n".join(f"{key}={value}" for key, value in self._settings(port).items()) + "\n")
        self._format(settings)
        began = time.monotonic()
        self._child = Child(java_command("kafka.Kafka", str(settings)), home / "console.log", directory=home)
        try:
            self._child.wait_for(_started, READY_TIMEOUT_S, "'Kafka Server started'")
        except BaseException:
            self._child.kill()
            raise
        self.start_to_ready_s = time.monotonic() - began
        self.pid = self._child.process.pid
        self.pids = (self.pid,)

    def _settings(self, port: int) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.store,
            # There is one node, so there is one replica.
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }

    def _format(self, settings: Path) -> None:
        command = java_command(
            "kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER_ID, "--config", str(settings)
        )
        made = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
            cwd=settings.parent,
        )
        if made.returncode != 0:
            raise RuntimeError(f"Kafka's storage tool failed:\n{made.stdout}{made.stderr}")

    def stop(self) -> None:
        self._child.stop(timeout_s=60)


def create_topic(server: KafkaBroker, topic: str, partitions: int) -> None:
    # Only these workloads need it, and only `make bench` installs it.
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.broker})
    made = admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=TOPIC_TIMEOUT_S)
    made[topic].result(TOPIC_TIMEOUT_S)


def stored(server: KafkaBroker, topic: str, partitions: int) -> int:
    """Returns how many messages the topic holds."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.broker, "group.id": "bench_ends"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TOPIC_TIMEOUT_S)
            for number in range(partitions)
        ]
    finally:
        consumer.close()
    return sum(end - begin for begin, end in ends)


def _started(text: str) -> str | None:
    return "up" if "Kafka Server started" in text else None
