"""Each known attack on a broker and its name server, one after the other, with a healthy client beside.

All of them share one broker and one client, so the whole table costs little more than the attacks. It is
printed at the end (`pytest -s`), and judged by the quiet time of the same run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from metaq.memory import TRIM_BYTES
from tests.support.hostile.attacks import ATTACKS, Attack
from tests.support.hostile.healthy import HealthyClient
from tests.support.hostile.judge import MemoryWatch, Row, table
from tests.support.hostile.target import Target, runtime_info
from tests.support.serving import MIB, Serving

QUIET_S = 2.0
WORST_RATIO, WORST_SLACK_S = 10, 2.5
"""The slowest answer in an attack may take this much of the slowest one in the quiet time. The attacks once
stopped everybody for four seconds to a minute."""
SLACK_BYTES = 64 * MIB
"""For what is allocated before it is counted, and for what the allocator rounds up."""
KEPT_BYTES = TRIM_BYTES + 16 * MIB
"""All attacks together may leave this much behind."""
GIVEN_BACK_S = 60
SETTINGS = {
    "commit_log_file_bytes": 64 * MIB,
    "memory_bytes_max": 96 * MIB,
    "connection_memory_bytes_max": 32 * MIB,
    "clients_bytes_max": 32 * MIB,
    "memory_trim_interval_s": 1,
}


@dataclass
class Run:
    """One broker, its healthy client, and what has happened so far."""

    broker: Serving
    healthy: HealthyClient
    memory: MemoryWatch
    target: Target
    rows: list[Row] = field(default_factory=list)

    @property
    def quiet(self) -> Row:
        return self.rows[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("hostile")
    with (
        Serving(home, home / "data", flush="async", settings=SETTINGS) as broker,
        HealthyClient(broker.broker, broker.nameserver) as healthy,
        MemoryWatch(broker.pid) as memory,
    ):
        run = Run(broker, healthy, memory, Target(broker.broker, broker.nameserver, broker.child.log))
        before = memory.now()
        time.sleep(QUIET_S)
        run.rows.append(Row("quiet", healthy.window(), before, memory.take_peak(), memory.now()))
        yield run
        print("", table(run.rows), sep="\n")
        verdict = healthy.check()
        print(f"{verdict.acknowledged} messages of the healthy client were acknowledged")
        assert verdict.acknowledged > 0
        assert verdict.problems == [], "lost, moved or copied messages"
        assert broker.stop() == 0
        assert "panicked" not in broker.log()
        assert_private(broker.data)


def assert_private(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == wanted, path


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_an_attack_hurts_nobody_else(run: Run, attack: Attack) -> None:
    run.healthy.window()
    run.memory.take_peak()
    before = run.memory.now()
    attack.make(replace(run.target, scale=attack.short))
    peak = run.memory.take_peak()
    given_back = run.memory.falls_below(run.quiet.after + KEPT_BYTES, GIVEN_BACK_S)
    row = Row(attack.name, run.healthy.window(), before, peak, run.memory.now())
    run.rows.append(row)

    assert row.window.failures == [], "the healthy client was refused or cut"
    assert row.window.worst_s() < WORST_RATIO * run.quiet.window.worst_s() + WORST_SLACK_S, table([row])
    with run.target.connect() as client:
        reported = runtime_info(client)
    budget = int(reported["connectionMemoryBytesMax"])
    assert int(reported["connectionMemoryBytesPeak"]) < budget + SLACK_BYTES
    allowed = budget + int(reported["clientsMemoryBytesMax"]) + SLACK_BYTES
    assert row.peak - run.quiet.after < allowed, table([row])
    assert given_back, table([row])
