"""The table of all attacks: their names, and how hard each is in a short run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.hostile import costly, forged, unread
from tests.support.hostile.target import Target


@dataclass(frozen=True)
class Attack:
    """One attack. `short` scales it for `make test`, `long` for each round of the soak."""

    make: Callable[[Target], None]
    kind: str
    """Attacks of one kind take turns in one process of the soak."""
    short: float = 1.0
    long: float = 1.0

    @property
    def name(self) -> str:
        return self.make.__name__.replace("_", " ")

    @property
    def says(self) -> str:
        return (self.make.__doc__ or "").strip()


ATTACKS = [
    Attack(costly.filter_much, "work"),
    Attack(unread.view_unread, "memory", short=0.4),
    Attack(unread.hold_large_filters, "memory", short=0.05),
    Attack(unread.pull_small_unread, "memory", short=0.15),
    Attack(unread.hold_and_leave, "memory"),
    Attack(costly.ask_the_mute, "control"),
    Attack(forged.commit_for_the_broker, "control", short=0.2),
    Attack(costly.query_in_vain, "work", short=0.2),
    Attack(forged.fill_values, "names", short=0.5),
    Attack(forged.commit_absurd_queues, "control", short=0.002, long=0.01),
    Attack(forged.take_over_routes, "names"),
    Attack(forged.immune_half_messages, "control", short=0.1, long=0.1),
    Attack(forged.forged_record, "control"),
    Attack(costly.change_identity, "control", short=0.01, long=0.05),
    Attack(forged.steal_identity, "control", short=0.1, long=0.1),
    Attack(costly.check_expressions, "work", short=0.1),
    Attack(costly.large_heartbeats, "control", short=0.1, long=0.5),
    Attack(unread.pull_large_unread, "memory", short=0.25),
    Attack(forged.many_tries, "control"),
    Attack(costly.flood_logs, "control", short=0.1, long=0.2),
    Attack(costly.new_names, "control", short=0.01, long=0.05),
    Attack(forged.flood_registrations, "names", short=0.02, long=0.1),
]
KINDS = list(dict.fromkeys(attack.kind for attack in ATTACKS))
