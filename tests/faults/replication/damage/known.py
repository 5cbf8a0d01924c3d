"""The damage that must not hurt today, and the damage that still does."""

from __future__ import annotations

from typing import Final

from tests.faults.replication.damage import plan
from tests.faults.replication.damage.plan import Damage

KNOWN_OPEN: Final[tuple[tuple[Damage, str], ...]] = (
    (
        Damage(plan.LOG, plan.SWAP),
        "a swapped block that begins at a record's first property hides its checksum (decision 0008)",
    ),
)
"""Patterns of damage that still hurts, each with the reason. `make soak` does not fail because of them."""

_STOPPED, _MASTER, _REPLICA = plan.STOPPED, plan.MASTER, plan.REPLICA

MUST_HOLD: Final = tuple(
    enumerate(
        (
            Damage(plan.NOTHING, moment=_STOPPED, who=_MASTER),
            Damage(plan.LOG, plan.FLIP, plan.RECENT, "body", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.RECENT, "properties", _STOPPED, _REPLICA),
            Damage(plan.LOG, plan.FLIP, plan.TAIL, "topic", _STOPPED, _REPLICA),
            Damage(plan.LOG, plan.FLIP, plan.OLD, "header", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.TAIL, "length", _STOPPED, _REPLICA),
            Damage(plan.LOG, plan.FLIP, plan.OLD, "body", plan.RUNNING, _MASTER),
            Damage(plan.LOG, plan.MISSING, plan.RECENT, "", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.RECENT, "body", plan.ALL_STOPPED, _REPLICA),
            Damage(plan.QUEUE, plan.FLIP, plan.OLD, "", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.ZERO, plan.OLD, "", plan.RUNNING, _REPLICA),
            Damage(plan.QUEUE, plan.SWAP, plan.OLD, "", _STOPPED, _MASTER),
            Damage(plan.QUEUE, plan.MISSING, plan.TAIL, "", plan.ELECTION, _MASTER),
            Damage(plan.QUEUE, plan.MISSING, plan.OLD, "", _STOPPED, _REPLICA),
            Damage(plan.QUEUE, plan.OLDER, plan.OLD, "", _STOPPED, _REPLICA),
            Damage(plan.TIMER, plan.FLIP, plan.OLD, "", plan.RUNNING, _MASTER),
            Damage(plan.LOG, plan.ZERO, plan.OLD, "", plan.COPY, _MASTER),
            Damage(plan.TIMER, plan.MISSING, plan.OLD, "", _STOPPED, _MASTER),
            Damage(plan.TIMER, plan.ZERO, plan.RECENT, "", plan.ELECTION, _REPLICA),
            Damage(plan.JOURNAL, plan.MISSING, plan.OLD, "", plan.ALL_STOPPED, _REPLICA),
            Damage(plan.JOURNAL, plan.MISSING, plan.OLD, "", _STOPPED, _REPLICA),
            Damage(plan.JOURNAL, plan.OLDER, plan.RECENT, "", _STOPPED, _MASTER),
            Damage(plan.CHECKPOINT, plan.MISSING, plan.OLD, "", _STOPPED, _MASTER),
            Damage(plan.LOG, plan.FLIP, plan.TAIL, "properties", plan.ELECTION, _MASTER),
            Damage(plan.CHECKPOINT, plan.FLIP, plan.TAIL, "", plan.COPY, _MASTER),
            Damage(plan.RECORD, plan.FLIP, plan.RECENT, "", _STOPPED, _REPLICA),
            Damage(plan.RECORD, plan.MISSING, plan.OLD, "", _STOPPED, _REPLICA),
            Damage(plan.RECORD, plan.OLDER, plan.OLD, "", _STOPPED, _MASTER),
            Damage(plan.OTHERS, plan.MISSING, plan.OLD, "", plan.RUNNING, _MASTER),
            Damage(plan.NOTHING, moment=plan.ELECTION, who=_MASTER),
            Damage(plan.NOTHING, moment=plan.COPY, who=_REPLICA),
            Damage(plan.CHECKPOINT, plan.MISSING, plan.OLD, "", plan.POWER, _REPLICA),
            Damage(plan.QUEUE, plan.FLIP, plan.OLD, "", plan.POWER, _MASTER),
            Damage(plan.INDEX, plan.FLIP, plan.OLD, "", plan.RUNNING, _MASTER),
            Damage(plan.INDEX, plan.MISSING, plan.TAIL, "", _STOPPED, _REPLICA),
            Damage(plan.INDEX, plan.OLDER, plan.RECENT, "", plan.RUNNING, _REPLICA),
            Damage(plan.LOG, plan.CUT, plan.OLD, "", plan.RUNNING, _MASTER),
            Damage(plan.LOG, plan.CUT, plan.TAIL, "", plan.RUNNING, _REPLICA),
        ),
        start=1,
    )
)
"""Damage that a group must survive, each with the seed of its trial. `make test` makes these trials."""


def why_open(damage: Damage) -> str:
    """Returns why this damage is known to hurt, or "" if it must not."""
    return next((why for pattern, why in KNOWN_OPEN if pattern.matches(damage)), "")
