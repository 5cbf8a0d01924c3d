"""One damage: which file, how, where, when and of whom; drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Final

LOG, QUEUE, INDEX, JOURNAL, TIMER = "log", "queue", "index", "journal", "timer"
CHECKPOINT, RECORD, OTHERS, REGISTER, NOTHING = "checkpoint", "record", "others", "register", "nothing"
FLIP, ZERO, CUT, SWAP, MISSING, OLDER = "flip", "zero", "cut", "swap", "missing", "older"
OLD, RECENT, TAIL = "old", "recent", "tail"
STOPPED, ALL_STOPPED, RUNNING, COPY, ELECTION, POWER = (
    "stopped",
    "all stopped",
    "running",
    "copy",
    "election",
    "power loss",
)
MASTER, REPLICA = "master", "replica"
PARTS: Final = ("length", "header", "topic", "properties", "body", "checksum")

_FILES: Final = {
    LOG: 10,
    QUEUE: 3,
    JOURNAL: 3,
    INDEX: 2,
    TIMER: 2,
    RECORD: 2,
    CHECKPOINT: 1,
    OTHERS: 1,
    REGISTER: 3,
}
_MOMENTS: Final = {STOPPED: 3, ALL_STOPPED: 2, RUNNING: 4, COPY: 2, ELECTION: 2, POWER: 1}
_UNDAMAGED_OF: Final = 25
"""One trial of this many damages nothing, to see false alarms."""


@dataclass(frozen=True)
class Damage:
    """The damage of a trial. As a pattern, an empty field stands for anything."""

    file: str = ""
    kind: str = ""
    place: str = ""
    part: str = ""
    """The part of a record of the log; others have none."""
    moment: str = ""
    who: str = ""

    def __str__(self) -> str:
        return " · ".join(word for word in vars(self).values() if word)

    def matches(self, damage: Damage) -> bool:
        """Whether the damage is one that this pattern stands for."""
        wanted = ((getattr(self, field.name), getattr(damage, field.name)) for field in fields(self))
        return all(not pattern or value in pattern.split("|") for pattern, value in wanted)


def draw(seed: int) -> Damage:
    """Returns the damage of a trial. The same seed gives the same damage on every machine."""
    choice = random.Random(f"damage {seed}")
    if choice.randrange(_UNDAMAGED_OF) == 0:
        return Damage(NOTHING, moment=_one_of(choice, _MOMENTS), who=choice.choice([MASTER, REPLICA]))
    file = _one_of(choice, _FILES)
    place = choice.choice([OLD, RECENT, TAIL])
    if file == REGISTER:
        return Damage(
            REGISTER,
            choice.choice([OLDER, OLDER, MISSING]),
            choice.choice([OLD, RECENT]),
            moment=choice.choice([ALL_STOPPED, RUNNING]),
            who=REGISTER,
        )
    kind = choice.choice([FLIP, FLIP, FLIP, ZERO, CUT, SWAP, MISSING, OLDER])
    part = choice.choice(PARTS) if file == LOG and kind == FLIP else ""
    moment = _one_of(choice, _MOMENTS)
    return Damage(file, kind, place, part, moment, choice.choice([MASTER, REPLICA]))


def _one_of(choice: random.Random, weights: dict[str, int]) -> str:
    return choice.choices(list(weights), list(weights.values()))[0]
