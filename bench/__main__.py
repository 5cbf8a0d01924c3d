"""`python -m bench`: MetaQ and its peers side by side, in alternating rounds.

The broker is measured against Apache RocketMQ, by Apache's own programs; the Python client against two of
Kafka's, each with its own broker. Brokers and programs come from Maven Central. Both brokers run while either
is measured; the one whose turn it is not gets no request, and the CPU it takes all the same is printed with
every round. The peer's virtual machine is warmed up with the same load before the first round that counts,
and so is the memory of the machine itself.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from bench import report
from bench.binlog import binlog
from bench.clients import kafka
from bench.clients.task import READ_COUNT
from bench.clients.workloads import CLIENT_WORKLOADS
from bench.console import console
from bench.page_cache import filled_page_cache
from bench.scrub import scrub
from bench.servers import Options
from bench.switch import switch
from bench.workloads import WORKLOADS as BROKER_WORKLOADS
from bench.workloads import Plan, checksums, say
from metaq.dev.plan import find_etcd
from metaq.errors import CommandError
from tests.support.apache import VERSION, apache_classpath
from tests.support.maven import REPOSITORY_ROOT

WORKLOADS = {
    **BROKER_WORKLOADS,
    **CLIENT_WORKLOADS,
    "binlog": binlog,
    "switch": switch,
    "console": console,
    "scrub": scrub,
    "checksums": checksums,
}
_PEER_CLIENTS = ("confluent-kafka", "aiokafka", "pyspark")
_ROUND_S_MIN = 13
"""A tool needs ten seconds for its first report, and a few to start."""


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    # SIGTERM ends the brokers and deletes their gigabytes, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if not chosen.metaq.exists() and chosen.self != "apache":
        print(f"{chosen.metaq} is not there: run `make setup` first, or give --metaq", file=sys.stderr)
        return 2
    # Measuring the peer against itself says nothing about clients.
    names = chosen.only or list(WORKLOADS if chosen.self == "metaq" else BROKER_WORKLOADS)
    with_clients = not CLIENT_WORKLOADS.keys().isdisjoint(names)
    missing = [package for package in _PEER_CLIENTS if with_clients and not _is_installed(package)]
    if missing:
        print(
            f"{', '.join(missing)} not installed: see requirements/bench.txt and spark.txt", file=sys.stderr
        )
        return 2
    if "switch" in names:
        try:
            find_etcd()
        except CommandError as error:
            print(f"{error}\n{error.hint}", file=sys.stderr)
            return 2
    say("servers and tools of the peers: asking Maven, which downloads them the first time")
    apache_classpath()
    if with_clients:
        kafka.kafka_classpath()
    if not {"spark-read", "spark-write"}.isdisjoint(names):
        from bench.clients.with_spark import connector_jars

        connector_jars()
    scratch = chosen.scratch or REPOSITORY_ROOT / "build"
    scratch.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch))
    plan = _plan(chosen, home)
    setting = _setting(plan, names, chosen.flush)
    say(setting)
    try:
        with _warm_machine(home, skip=chosen.cold_memory):
            outcomes = [WORKLOADS[name](plan) for name in names]
    finally:
        if not chosen.keep:
            shutil.rmtree(home, ignore_errors=True)
    form = report.machine_form if chosen.output == "json" else report.table
    print(form(outcomes, setting))
    return 0


def _setting(plan: Plan, names: Sequence[str], flush: str) -> str:
    peers, rounds = [], []
    if not BROKER_WORKLOADS.keys().isdisjoint(names):
        peers.append(f"{' against '.join(plan.kinds)}, Apache RocketMQ {VERSION}")
        rounds.append(f"rounds of {plan.round_s:g} s")
    if not CLIENT_WORKLOADS.keys().isdisjoint(names):
        clients = ", ".join(f"{package} {metadata.version(package)}" for package in _PEER_CLIENTS)
        peers.append(f"Python client against {clients}, Kafka {kafka.VERSION}")
        rounds.append(f"clients' rounds of {plan.client_round_s:g} s")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    return "; ".join([*peers, f"flush {flush}", machine, *rounds])


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def _warm_machine(home: Path, *, skip: bool) -> Iterator[None]:
    if skip:
        yield
        return
    with filled_page_cache(home) as size_bytes:
        say(f"memory: touched {size_bytes / 1e9:.1f} GB once, so that no side pays for its first use")
        yield


def _plan(chosen: argparse.Namespace, home: Path) -> Plan:
    return Plan(
        kinds={"metaq": "metaq", "rocketmq": "apache"}
        if chosen.self == "metaq"
        else {"rocketmq-1": "apache", "rocketmq-2": "apache"},
        rounds=chosen.rounds or (2 if chosen.quick else 5),
        round_s=max(_ROUND_S_MIN, chosen.round_seconds or (14 if chosen.quick else 22)),
        warmup_s=max(_ROUND_S_MIN, chosen.warmup_seconds or (14 if chosen.quick else 30)),
        backlog_messages=chosen.backlog_messages or (3_000_000 if chosen.quick else 8_000_000),
        start_rounds=chosen.rounds or (1 if chosen.quick else 3),
        delayed_messages=chosen.delayed_messages or (100_000 if chosen.quick else 1_000_000),
        client_round_s=chosen.round_seconds or (5 if chosen.quick else 8),
        client_warmup_s=chosen.warmup_seconds or (5 if chosen.quick else 20),
        client_process_warmup_s=1.5,
        # Whole reads: confluent-kafka waits for as many as it is asked for.
        client_backlog_messages=(chosen.backlog_messages or (3_000_000 if chosen.quick else 8_000_000))
        // READ_COUNT
        * READ_COUNT,
        binlog_rows=50_000 if chosen.quick else 200_000,
        mirror_s=30 if chosen.quick else 120,
        switches=chosen.rounds or (3 if chosen.quick else 20),
        options=Options(flush=chosen.flush, metaq=chosen.metaq, peer_heap=chosen.peer_heap),
        home=home,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--only", action="append", choices=list(WORKLOADS), help="only this workload (may be given again)")
    add("--flush", choices=["async", "sync"], default="async", help="on both sides (default: async)")
    add("--rounds", type=int, help="per side and workload (default: 5; of kills and of switches 20)")
    add("--round-seconds", type=float, help="of which the last ten count (default: 22, of clients 8)")
    add(
        "--warmup-seconds",
        type=float,
        help="of load first, per broker (default: 30, of clients 20)",
    )
    add("--backlog-messages", type=int, help="before the consumers' rounds (default: 8,000,000)")
    add("--delayed-messages", type=int, help="that wait for one moment (default: 1,000,000)")
    add("--quick", action="store_true", help="two short rounds: a look, not a result")
    add("-o", "--output", choices=["table", "json"], default="table")
    add(
        "--self",
        choices=["metaq", "apache"],
        default="metaq",
        help="`apache` measures the peer against itself",
    )
    add("--metaq", type=Path, default=Path(sys.executable).parent / "metaq", help="the command to start")
    add("--peer-heap", default="4g", help="of the peer's broker (default: 4g)")
    add("--cold-memory", action="store_true", help="do not fill the page cache before (see page_cache.py)")
    add("--scratch", type=Path, help="where stores and logs go meanwhile (default: build/)")
    add("--keep", action="store_true", help="leave them there")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
