"""The workloads: each gives both brokers their turns and returns the figures of every round."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import delay as waiting
from bench import pairs, servers, tools
from bench.process_figures import disk_bytes, memory_bytes
from bench.servers import BrokerUnderTest, Options
from tests.support.plain_client import PlainClient, queue_end

QUEUES = 8
IDLE_S = 5
BACKLOG_TIMEOUT_S = 600
_TOPIC = "bench"
LIMIT = "nothing"
"""A server that only answers. Its figures are the limit of the client and the machine."""


@dataclass(frozen=True)
class Plan:
    """The length and number of the rounds, and the broker on each side."""

    kinds: dict[str, str]
    """Side → kind of broker: `metaq` or `apache`."""
    rounds: int
    round_s: float
    warmup_s: float
    backlog_messages: int
    start_rounds: int
    delayed_messages: int
    client_round_s: float
    client_warmup_s: float
    """Seconds of load for each broker before the rounds of the Python clients."""
    client_process_warmup_s: float
    """Seconds of warm-up in every client process, before its clock starts."""
    client_backlog_messages: int
    binlog_rows: int
    """Changes of each kind."""
    mirror_s: float
    """For how long rows are changed at a steady rate."""
    switches: int
    """How often a master is killed, and how often it is switched by plan."""
    options: Options
    home: Path


@dataclass
class Outcome:
    """Figures by side, one entry per round: first ours, then the peer, then sides that are only reported."""

    workload: str
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, side: str, figures: dict[str, float]) -> None:
        self.rounds.setdefault(side, []).append(figures)


def say(text: str) -> None:
    """Progress goes to stderr: stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


_KINDS: dict[str, Callable[[str, Path, Options], BrokerUnderTest]] = {
    "metaq": servers.MetaqBroker,
    "apache": servers.ApacheBroker,
    "nothing": servers.Nothing,
    "metaq-pair": pairs.MetaqPair,
    "metaq-pair-without-checksums": pairs.MetaqPairWithoutChecksums,
    "apache-pair": pairs.ApachePair,
}
_PAIRS = {"metaq-pair": "metaq-pair", "rocketmq-pair": "apache-pair", "metaq alone": "metaq"}


def producer(plan: Plan) -> Outcome:
    """64 threads, one message of 128 bytes a call, each waiting for its answer."""
    return _alternate(plan, "producer", tools.PRODUCER, {**plan.kinds, LIMIT: "nothing"})


def batch(plan: Plan) -> Outcome:
    """10 threads, 32 messages of 128 bytes a call."""
    return _alternate(plan, "batch", tools.BATCH_PRODUCER, {**plan.kinds, LIMIT: "nothing"})


def transaction(plan: Plan) -> Outcome:
    """64 threads, one message of 128 bytes a transaction, all of them committed."""
    return _alternate(plan, "transaction", tools.TRANSACTION_PRODUCER, plan.kinds)


def consumer(plan: Plan) -> Outcome:
    """A backlog, read by a group that has never read before; a new group every round."""
    return _alternate(plan, "consumer", tools.CONSUMER, plan.kinds, backlog=True)


def replicated(plan: Plan) -> Outcome:
    """The work of `producer`; both nodes of a pair hold a message before it is answered."""
    return _alternate(plan, "replicated", tools.PRODUCER, _PAIRS)


def checksums(plan: Plan) -> Outcome:
    """The same work of our pair, with the checksum of all bytes in each record and without it."""
    kinds = {"metaq-pair": "metaq-pair", "no checksums": "metaq-pair-without-checksums"}
    return _alternate(plan, "checksums", tools.PRODUCER, kinds)


def start(plan: Plan) -> Outcome:
    """From the start of the process to its ready line; memory and disk after some idle seconds."""
    outcome = Outcome("start")
    for number in range(1, plan.start_rounds + 1):
        for side, kind in plan.kinds.items():
            home = plan.home / f"start-{side}-{number}"
            server = _KINDS[kind](side, home, plan.options)
            try:
                time.sleep(IDLE_S)
                memory = memory_bytes(server.pid)
                disk = disk_bytes(server.store)
            finally:
                server.stop()
            shutil.rmtree(home)
            figures = {
                "start_to_ready_s": server.start_to_ready_s,
                "idle_resident_bytes": memory["resident"],
                "fresh_store_bytes": disk,
            }
            outcome.add(side, figures)
            say(
                f"start    round {number} {side:<10} ready after {server.start_to_ready_s:6.3f} s, "
                f"idle {memory['resident'] / 1e6:7.1f} MB, fresh store {disk / 1e6:7.1f} MB"
            )
    return outcome


def delay(plan: Plan) -> Outcome:
    """Messages of 128 bytes that are due at one moment. Ours alone: the peer spreads such messages."""
    outcome = Outcome("delay")
    home = plan.home / "delay"
    for number in range(1, plan.start_rounds + 1):
        server = servers.MetaqBroker("metaq", home / str(number), plan.options)
        try:
            figures = waiting.measure(server, plan.delayed_messages)
        finally:
            server.stop()
        shutil.rmtree(home)
        outcome.add("metaq", figures)
        say(
            f"delay    round {number} metaq      {plan.delayed_messages:,} wait in "
            f"{figures['waiting_own_bytes'] / 1e6:.0f} MB of the broker's own, "
            f"{figures['due_per_second']:,.0f} come per second, the first after "
            f"{figures['first_late_ms']:.0f} ms"
        )
    return outcome


WORKLOADS: dict[str, Callable[[Plan], Outcome]] = {
    "start": start,
    "producer": producer,
    "batch": batch,
    "transaction": transaction,
    "consumer": consumer,
    "replicated": replicated,
    "delay": delay,
}


def _alternate(
    plan: Plan, workload: str, tool: tools.Tool, kinds: Mapping[str, str], *, backlog: bool = False
) -> Outcome:
    """The brokers, by side and kind, run all the time and take turns, a round each. The one whose turn it is
    not gets no request, and what CPU it takes all the same is printed.
    """
    outcome = Outcome(workload)
    home = plan.home / workload
    running: list[BrokerUnderTest] = []
    try:
        for side, kind in kinds.items():
            running.append(_KINDS[kind](side, home / side, plan.options))
            servers.create_topic(running[-1], _TOPIC, QUEUES, home)
        for server in running:
            _warm_up(plan, workload, tool, server, home, backlog=backlog)
        for number in range(1, plan.rounds + 1):
            for server in running:
                others = [other for other in running if other is not server]
                extra = ("-g", f"bench_{number}") if backlog else ()
                measured = tools.measure(tool, server, others, home, _TOPIC, plan.round_s, extra)
                outcome.add(server.name, measured.figures())
                say(_round_line(workload, number, measured))
                if backlog and measured.per_second * tools.WINDOW_S > 0.9 * plan.backlog_messages:
                    say(f"{workload:<8} the backlog ran out: {server.name} is faster than that")
        for server in running:
            if isinstance(server, pairs.Pair):
                server.wait_copied(_TOPIC, QUEUES)
        outcome.memory = {server.name: memory_bytes(server.pid) for server in running}
    finally:
        for server in running:
            server.stop()
    shutil.rmtree(home)
    return outcome


def _warm_up(
    plan: Plan, workload: str, tool: tools.Tool, server: BrokerUnderTest, home: Path, *, backlog: bool
) -> None:
    if backlog:
        _fill_backlog(plan, workload, server, home)
    extra: Sequence[str] = ("-g", "bench_warmup") if backlog else ()
    measured = tools.measure(tool, server, (), home, _TOPIC, plan.warmup_s, extra)
    say(f"{workload:<8} warm-up {server.name:<10} {measured.per_second:>9,} messages/s (not counted)")


def _fill_backlog(plan: Plan, workload: str, server: BrokerUnderTest, home: Path) -> None:
    """The same number of messages on either side, whatever time it takes."""
    with PlainClient(server.broker) as client:

        def stored() -> int:
            return sum(queue_end(client, _TOPIC, queue_id) for queue_id in range(QUEUES))

        enough = plan.backlog_messages
        tools.run_until(
            tools.BATCH_PRODUCER, server, home, _TOPIC, lambda: stored() >= enough, BACKLOG_TIMEOUT_S
        )
        say(f"{workload:<8} backlog {server.name:<10} {stored():>9,} messages")


def _round_line(workload: str, number: int, measured: tools.Measured) -> str:
    return (
        f"{workload:<8} round {number} {measured.server:<10} {measured.per_second:>9,} messages/s, "
        f"{measured.average_ms:7.3f} ms, broker CPU {measured.broker_cpu_us:6.2f} µs/message, "
        f"failed {measured.failed}, the other's CPU {measured.others_cpu_cores:.2f} cores"
    )
