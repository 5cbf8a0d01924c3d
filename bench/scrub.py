"""The time of sends while the scrub reads a log of 10 GB, and while it does not, in alternating rounds.

Two brokers have the same log. One of them scrubs it all the time at the highest rate of the default
settings; the other one never does.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

from bench.servers import READY_TIMEOUT_S, ready_line
from bench.single_sends import single_sends
from bench.workloads import Outcome, Plan, say
from tests.support.hostile.target import send_batch
from tests.support.plain_client import SUCCESS, PlainClient, create_topic
from tests.support.processes import Child

LOG_BYTES = 10 * 1000**3
OLD_TOPIC, TOPIC = "scrubbed", "sends"
OLD_BODY = b"x" * 4096
RECORD_BYTES = 4_250
"""A message of the old log with its header and checksum, roughly."""
BATCH = 64
INTERVALS_S = {"scrub": 60, "no scrub": 0}
"""The whole log in a minute would need more than the highest rate, so the scrub reads at that."""


def scrub(plan: Plan) -> Outcome:
    """Times of single sends, beside a scrub and without one."""
    home = plan.home / "scrub"
    outcome = Outcome("scrub")
    _fill(plan, home / "scrub")
    shutil.copytree(home / "scrub" / "data", home / "no scrub" / "data")
    with ExitStack() as brokers:
        addresses = {}
        for side in INTERVALS_S:
            child, addresses[side] = _serve(plan, home / side, INTERVALS_S[side])
            brokers.callback(child.stop, timeout_s=60)
            single_sends(addresses[side], TOPIC, plan.client_warmup_s)
        for number in range(1, plan.rounds + 1):
            for side, address in addresses.items():
                figures = single_sends(address, TOPIC, plan.round_s)
                outcome.add(side, figures)
                say(
                    f"scrub  round {number} {side:<8} p50 {figures['p50_ms']:6.3f} ms, "
                    f"p99 {figures['p99_ms']:6.3f} ms"
                )
    for side in INTERVALS_S:
        say(f"scrub  {side}: {_position(home / side) / 1e9:.2f} GB of {LOG_BYTES / 1e9:.0f} GB were read")
    return outcome


def _serve(plan: Plan, home: Path, interval_s: int) -> tuple[Child, str]:
    serve = [str(plan.options.metaq), "serve", "--host", "127.0.0.1", "--flush", plan.options.flush]
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", f"scrub_interval_s={interval_s}")
    home.mkdir(parents=True, exist_ok=True)
    child = Child([*serve, *ports, "--data", str(home / "data")], home / "serve.log")
    ready = json.loads(child.wait_for(ready_line, READY_TIMEOUT_S, "METAQ_READY line"))
    return child, ready["broker"]


def _fill(plan: Plan, home: Path) -> None:
    """Writes the log that is scrubbed later."""
    child, address = _serve(plan, home, 0)
    try:
        with PlainClient(address) as client:
            for topic in (OLD_TOPIC, TOPIC):
                assert create_topic(client, topic, 1).code == SUCCESS
            for _ in range(LOG_BYTES // (RECORD_BYTES * BATCH)):
                send_batch(client, OLD_TOPIC, BATCH, OLD_BODY, b"")
    finally:
        child.stop(timeout_s=60)
    say(f"scrub  wrote {LOG_BYTES / 1e9:.0f} GB")


def _position(home: Path) -> int:
    """How far the scrub came, by the file that a broker leaves when it stops."""
    record = home / "data" / "scrub.json"
    return int(json.loads(record.read_text()).get("position", 0)) if record.exists() else 0
