"""`python -m bench.soak --damage`: seeded damage to the files of one node of a group, hundreds of times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.faults.disks import loop_disks_work
from tests.faults.replication.damage import plan
from tests.faults.replication.damage.known import why_open
from tests.faults.replication.damage.series import Series
from tests.faults.replication.damage.summary import table

TRIALS = 500
HEAL_S = 25.0
"""Groups heal in a few seconds. Many trials fail today, and each waits this long."""


def run_damage(home: Path, trials: int | None, seed: int | None, say: Callable[[str], None]) -> int:
    """Runs trials from a seed on and prints their figures; a seed alone runs that trial again. Returns the
    exit code: 1 if a trial failed whose damage is not listed in `KNOWN_OPEN`."""
    first = seed or 0
    wanted = trials or (TRIALS if seed is None else 1)
    power = loop_disks_work(home)
    if not power:
        say("no trial takes power away: that needs root, loop devices and mkfs.ext4")
    drawn = [(number, plan.draw(number)) for number in range(first, first + wanted)]
    drawn = [one for one in drawn if power or one[1].moment != plan.POWER]
    # Groups on disks that can lose their power are slower to start, so their trials come together.
    drawn.sort(key=lambda one: one[1].moment == plan.POWER)
    with Series(home / "trials", say, heal_s=HEAL_S) as series:
        outcomes = series.run_all(drawn)
    print(*table(outcomes), sep="\n")
    failed = [outcome for outcome in outcomes if outcome.findings]
    new = [outcome for outcome in failed if not why_open(outcome.damage)]
    print(
        f"{len(failed)} of {len(outcomes)} trials failed, {len(new)} of them with damage that must not hurt"
    )
    print(*(outcome.report() for outcome in new), sep="\n")
    return 1 if new else 0
