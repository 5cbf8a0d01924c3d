"""`python -m bench.soak --damage`: seeded damage to the files of one node of a group, hundreds of times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.disks import loop_disks_work
from tests.faults.replication.damage import plan
from tests.faults.replication.damage.apache_world import COMPARED, ApacheWorld
from tests.faults.replication.damage.known import why_open
from tests.faults.replication.damage.side_by_side import run_side_by_side
from tests.faults.replication.damage.summary import table
from tests.faults.replication.damage.trial import Outcome
from tests.faults.replication.damage.world import World
from tests.support.apache import VERSION

TRIALS = 500
GROUPS = 2
"""Most of a trial is waiting, so two groups share two cores."""
HEAL_S = 120.0
"""Groups heal in a few seconds. On a busy machine, a step of that may take much longer."""


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
    began = time.monotonic()
    outcomes = run_side_by_side(home / "trials", drawn, say, groups=GROUPS, heal_s=HEAL_S)
    minutes = (time.monotonic() - began) / 60
    print(*table(outcomes), sep="\n")
    print(f"{len(outcomes)} trials in {minutes:.1f} minutes, on {GROUPS} groups side by side")
    failed = [outcome for outcome in outcomes if outcome.findings]
    new = [outcome for outcome in failed if not why_open(outcome.damage)]
    print(
        f"{len(failed)} of {len(outcomes)} trials failed, {len(new)} of them with damage that must not hurt"
    )
    print(*(outcome.report() for outcome in new), sep="\n")
    return 1 if new else 0


def run_beside_apache(home: Path, trials: int | None, say: Callable[[str], None]) -> int:
    """Does the same damage to our group and to Apache's, and prints both tables. Apache's losses do not fail
    the run."""
    failed: list[Outcome] = []
    for title, new_world, groups in (("MetaQ", World, GROUPS), (f"Apache {VERSION}", ApacheWorld, 1)):
        outcomes = run_side_by_side(
            home / title.split()[0].lower(),
            COMPARED[:trials],
            say,
            groups=groups,
            heal_s=HEAL_S,
            new_world=new_world,
        )
        print(*table(outcomes, title), sep="\n")
        if new_world is World:
            failed = [outcome for outcome in outcomes if outcome.findings]
    return 1 if failed else 0
