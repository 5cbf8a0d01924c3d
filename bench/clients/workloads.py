"""Client workloads: our client and its peer take turns, each in its own process."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import servers, tools
from bench.clients import kafka, perf
from bench.clients.kafka import KafkaBroker
from bench.clients.task import Result, Task
from bench.process_figures import CpuWatch, memory_bytes
from bench.servers import BrokerUnderTest
from bench.workloads import BACKLOG_TIMEOUT_S, QUEUES, Outcome, Plan, say
from tests.support.maven import REPOSITORY_ROOT
from tests.support.plain_client import PlainClient, queue_end
from tests.support.processes import Child

_TOPIC = "bench"
_START_AND_FLUSH_S = 150
"""Seconds that a client process may take beyond its measured time."""


@dataclass(frozen=True)
class Side:
    """A client and the broker it talks to."""

    name: str
    broker: str
    program: str
    """A function of `bench/clients`; `perf` is Kafka's own tool."""


_PRODUCE = (
    Side("metaq", "metaq", "with_metaq.produce"),
    Side("confluent", "kafka", "with_confluent.produce"),
    Side("kafka-java", "kafka", "perf"),
)
_CONSUME = (
    Side("metaq", "metaq", "with_metaq.poll"),
    Side("confluent", "kafka", "with_confluent.consume"),
    Side("our-handler", "metaq", "with_metaq.handler"),
    Side("our-iteration", "metaq", "with_metaq.iteration"),
)
_AIO = (
    Side("metaq", "metaq", "with_metaq.produce_async"),
    Side("aiokafka", "kafka", "with_aiokafka.produce_async"),
)
_SEND = (
    Side("metaq", "metaq", "with_metaq.send_async"),
    Side("aiokafka", "kafka", "with_aiokafka.send_async"),
)

_SPARK = (
    Side("metaq", "metaq", "with_spark.read_metaq"),
    Side("spark-sql-kafka", "kafka", "with_spark.read_kafka"),
)
_SPARK_WRITE = (
    Side("metaq", "metaq", "with_spark.write_metaq"),
    Side("spark-sql-kafka", "kafka", "with_spark.write_kafka"),
    Side("our-exactly-once", "metaq", "with_spark.write_metaq_exactly_once"),
)
SPARK_MESSAGES = 5_000_000


def produce(plan: Plan) -> Outcome:
    """`send_soon` and a flush against `produce` and a flush: until everything is confirmed."""
    return _alternate(plan, "client-produce", _PRODUCE)


def consume(plan: Plan) -> Outcome:
    """`poll(count=1000)` against `consume(1000)`, over equal backlogs, looking at each body."""
    return _alternate(plan, "client-consume", _CONSUME, backlog=True)


def produce_async(plan: Plan) -> Outcome:
    """`send_soon` of the client on asyncio against aiokafka's `send`."""
    return _alternate(plan, "client-aio", _AIO)


def send(plan: Plan) -> Outcome:
    """One awaited send at a time."""
    return _alternate(plan, "client-send", _SEND)


def spark_read(plan: Plan) -> Outcome:
    """A topic read as a table by Spark, against Spark's own source for Kafka."""
    messages = min(SPARK_MESSAGES, plan.client_backlog_messages)
    return _alternate(replace(plan, client_backlog_messages=messages), "spark-read", _SPARK, backlog=True)


def spark_write(plan: Plan) -> Outcome:
    """A table written to a topic by Spark, against Spark's own sink for Kafka."""
    return _alternate(plan, "spark-write", _SPARK_WRITE)


CLIENT_WORKLOADS: dict[str, Callable[[Plan], Outcome]] = {
    "client-produce": produce,
    "client-consume": consume,
    "client-aio": produce_async,
    "client-send": send,
    "spark-read": spark_read,
    "spark-write": spark_write,
}


def _alternate(plan: Plan, workload: str, sides: Sequence[Side], *, backlog: bool = False) -> Outcome:
    """Both brokers run all the time, and only one of them gets requests at a time."""
    outcome = Outcome(workload)
    home = plan.home / workload
    running: dict[str, BrokerUnderTest] = {}
    try:
        running["metaq"] = servers.MetaqBroker("metaq", home / "metaq", plan.options)
        servers.create_topic(running["metaq"], _TOPIC, QUEUES, home)
        running["kafka"] = peer = KafkaBroker("kafka", home / "kafka")
        kafka.create_topic(peer, _TOPIC, QUEUES)
        for server in running.values():
            if backlog:
                _fill(plan, workload, server, home)
            first = next(side for side in sides if side.broker == server.name)
            figures = _measure(plan, first, running, home, plan.client_warmup_s, "warmup", backlog=backlog)
            rate = f"{figures['per_second']:>9,.0f} messages/s"
            say(f"{workload:<14} warm-up {first.name:<13} {rate} (not counted)")
        for number in range(1, plan.rounds + 1):
            for side in sides:
                group = f"bench_{side.name}_{number}"
                figures = _measure(plan, side, running, home, plan.client_round_s, group, backlog=backlog)
                outcome.add(side.name, figures)
                say(_round_line(workload, number, side.name, figures))
        outcome.memory = {side.name: memory_bytes(running[side.broker].pid) for side in sides[:2]}
    finally:
        for server in running.values():
            server.stop()
    shutil.rmtree(home)
    return outcome


def _measure(
    plan: Plan,
    side: Side,
    running: dict[str, BrokerUnderTest],
    home: Path,
    round_s: float,
    group: str,
    *,
    backlog: bool,
) -> dict[str, float]:
    # Dirty pages of one side must not be written back during the other side's turn.
    os.sync()
    server = running[side.broker]
    if side.program == "perf":
        assert isinstance(server, KafkaBroker)
        return perf.measure(server, _TOPIC, home)
    before = 0 if backlog else _stored(server)
    task = Task(
        program=side.program,
        server=server.nameserver,
        topic=_TOPIC,
        queues=QUEUES,
        # Messages that a reader prefetches before its clock starts would not be timed.
        warmup_s=0.0 if backlog else plan.client_process_warmup_s,
        round_s=round_s,
        messages_max=plan.client_backlog_messages if backlog else 0,
        group=group,
    )
    with CpuWatch({name: one.pids for name, one in running.items()}) as watch:
        result = run(task, home, task.warmup_s + round_s + _START_AND_FLUSH_S)
    if not backlog and (found := _stored(server) - before) < result.total:
        raise RuntimeError(f"{side.name} sent {result.total} messages, and {found} are stored")
    return _figures(side, result, watch, running)


def _figures(
    side: Side, result: Result, watch: CpuWatch, running: dict[str, BrokerUnderTest]
) -> dict[str, float]:
    seconds = result.end - result.begin
    spent_s = {name: watch.spent_s(name, result.begin, result.end) for name in running}
    figures = {
        "per_second": result.count / seconds,
        "client_cpu_us": result.client_cpu_s * 1e6 / result.count,
        "broker_cpu_us": spent_s[side.broker] * 1e6 / result.count,
        "others_cpu_cores": sum(spent for name, spent in spent_s.items() if name != side.broker) / seconds,
    }
    if result.p50_ms:
        figures |= {"p50_ms": result.p50_ms, "p99_ms": result.p99_ms}
    return figures


def run(task: Task, home: Path, timeout_s: float) -> Result:
    """Runs the task in a process of its own. Raises RuntimeError with its output if it fails."""
    child = Child(
        [sys.executable, "-m", "bench.clients", task.written()],
        home / f"{task.program}-{time.monotonic_ns()}.log",
        directory=REPOSITORY_ROOT,
    )
    found: list[Result] = []

    def read(log: str) -> str | None:
        result = Result.found_in(log)
        found.extend([] if result is None else [result])
        return None if result is None else "told"

    try:
        child.wait_for(read, timeout_s, f"result of {task.program}")
    finally:
        child.kill()
    return found[0]


def _fill(plan: Plan, workload: str, server: BrokerUnderTest, home: Path) -> None:
    """At least as many messages as will be read, of equal size on either side."""
    count = plan.client_backlog_messages
    if isinstance(server, KafkaBroker):
        task = Task("with_confluent.fill", server.nameserver, _TOPIC, QUEUES, 0, 0, count)
        run(task, home, BACKLOG_TIMEOUT_S)
    else:
        tools.run_until(
            tools.BATCH_PRODUCER, server, home, _TOPIC, lambda: _stored(server) >= count, BACKLOG_TIMEOUT_S
        )
    say(f"{workload:<14} backlog {server.name:<13} {_stored(server):>9,} messages")


def _stored(server: BrokerUnderTest) -> int:
    if isinstance(server, KafkaBroker):
        return kafka.stored(server, _TOPIC, QUEUES)
    with PlainClient(server.broker) as client:
        return sum(queue_end(client, _TOPIC, queue_id) for queue_id in range(QUEUES))


def _round_line(workload: str, number: int, side: str, figures: dict[str, float]) -> str:
    times = f", p50 {figures['p50_ms']:.3f} ms, p99 {figures['p99_ms']:.3f} ms" if "p50_ms" in figures else ""
    return (
        f"{workload:<14} round {number} {side:<13} {figures['per_second']:>9,.0f} messages/s{times}, "
        f"CPU per message: client {figures['client_cpu_us']:.2f} µs, broker {figures['broker_cpu_us']:.2f} µs"
    )
