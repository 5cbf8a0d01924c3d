"""Trials on several groups at the same time: most of a trial is waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.faults.replication.damage.plan import Damage
from tests.faults.replication.damage.series import Series
from tests.faults.replication.damage.trial import Outcome
from tests.faults.replication.damage.world import World


def run_side_by_side(
    home: Path,
    trials: Sequence[tuple[int, Damage]],
    say: Callable[[str], None],
    *,
    groups: int,
    heal_s: float,
    new_world: type[World] = World,
) -> list[Outcome]:
    """Runs all trials, each on one of that many groups, and returns the outcomes in the order of the trials.

    If a trial ends with an error of its own program, raises that error.
    """
    waiting = deque(enumerate(trials))
    outcomes: dict[int, Outcome] = {}
    errors: list[BaseException] = []

    def run(series: Series) -> None:
        while not errors:
            try:
                number, (seed, damage) = waiting.popleft()
            except IndexError:
                return
            try:
                outcomes[number] = series.run(seed, damage)
            except BaseException as error:
                errors.append(error)

    with ExitStack() as stack:
        opened = [
            stack.enter_context(Series(home / f"group-{number}", say, heal_s=heal_s, new_world=new_world))
            for number in range(1, groups + 1)
        ]
        threads = [threading.Thread(target=run, args=(series,), daemon=True) for series in opened]
        # On SIGTERM, the series end their processes, and no trial begins.
        stack.callback(waiting.clear)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [outcomes[number] for number in sorted(outcomes)]
