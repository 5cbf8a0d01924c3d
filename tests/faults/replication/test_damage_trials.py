"""Damage that must not hurt: the trials of `known.MUST_HOLD`, on groups that serve many of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.disks import loop_disks_work
from tests.faults.replication.damage import plan
from tests.faults.replication.damage.known import KNOWN_OPEN, MUST_HOLD, why_open
from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.series import Series
from tests.faults.replication.damage.summary import table

LONG_S = 1_200
"""Alone on a machine they take little more than a minute; other suites run beside them."""


@pytest.mark.timeout(LONG_S)
def test_nothing_is_lost_skipped_or_altered(tmp_path: Path) -> None:
    trials = [(seed, damage) for seed, damage in MUST_HOLD if damage.moment != plan.POWER]
    assert len(trials) >= 30
    with Series(tmp_path) as series:
        outcomes = series.run_all(trials)
    print(*table(outcomes), sep="\n")
    assert not [outcome.report() for outcome in outcomes if outcome.findings or outcome.is_empty]


def test_nothing_is_lost_when_another_node_loses_its_power(tmp_path: Path) -> None:
    if not loop_disks_work(tmp_path):
        pytest.skip("needs root, loop devices and mkfs.ext4")
    trials = [(seed, damage) for seed, damage in MUST_HOLD if damage.moment == plan.POWER]
    assert trials
    with Series(tmp_path / "trials") as series:
        outcomes = series.run_all(trials)
    assert not [outcome.report() for outcome in outcomes if outcome.findings or outcome.is_empty]


def test_a_seed_always_draws_the_same_damage_and_all_kinds_come_up() -> None:
    drawn = [plan.draw(seed) for seed in range(500)]
    assert drawn == [plan.draw(seed) for seed in range(500)]
    for name, wanted in {
        "file": {plan.LOG, plan.QUEUE, plan.INDEX, plan.JOURNAL, plan.TIMER, plan.CHECKPOINT, plan.RECORD}
        | {plan.OTHERS, plan.REGISTER, plan.NOTHING},
        "kind": {plan.FLIP, plan.ZERO, plan.CUT, plan.SWAP, plan.MISSING, plan.OLDER},
        "place": {plan.OLD, plan.RECENT, plan.TAIL},
        "part": set(plan.PARTS),
        "moment": {plan.STOPPED, plan.ALL_STOPPED, plan.RUNNING, plan.COPY, plan.ELECTION, plan.POWER},
        "who": {plan.MASTER, plan.REPLICA, plan.REGISTER},
    }.items():
        assert {getattr(damage, name) for damage in drawn} - {""} == wanted


def test_damage_that_must_hold_is_not_listed_as_open() -> None:
    assert not [damage for _, damage in MUST_HOLD if why_open(damage)]
    assert all(reason for _, reason in KNOWN_OPEN)


def test_a_pattern_stands_for_every_damage_with_its_words() -> None:
    damage = Damage(plan.LOG, plan.FLIP, plan.OLD, "body", plan.RUNNING, plan.MASTER)
    assert Damage(plan.LOG).matches(damage)
    assert Damage(plan.LOG, f"{plan.ZERO}|{plan.FLIP}").matches(damage)
    assert not Damage(plan.LOG, plan.ZERO).matches(damage)
    assert not Damage(plan.LOG, part="topic").matches(damage)
