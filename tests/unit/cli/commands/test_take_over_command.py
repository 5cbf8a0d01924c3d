"""metaq broker take-over: how far a copy is, and what --force says before it asks."""

from __future__ import annotations

import pytest

from metaq.cli.commands.take_over import consequences, parties, progress
from metaq.errors import CommandError
from metaq.protocol.commands.replication import GroupStatus, NodeStatus

RUNS = NodeStatus(0, "h:1", "master", "in sync")
GONE = NodeStatus(0, "h:1", "master", "gone")
COPY = NodeStatus(1, "h:9", "replica", "catching up", 2048)


def test_the_parties_of_a_move() -> None:
    assert parties(GroupStatus("a", 0, 0, 1, (0,), (RUNS, COPY)), "h:9") == (RUNS, COPY)
    assert parties(GroupStatus("a", 0, 0, 1, (0,), (RUNS,)), "h:9") == (RUNS, RUNS)
    for epoch, nodes in ((7, (RUNS, COPY)), (0, (RUNS, COPY, COPY)), (0, ())):
        with pytest.raises(CommandError, match="h:9 is a node of group a and copies no Apache master"):
            parties(GroupStatus("a", epoch, 0, 1, (), nodes), "h:9")


def test_progress() -> None:
    assert progress("a", RUNS, COPY) == "h:9 copies a from h:1, which runs: catching up, 2.0 KiB behind"
    unknown = NodeStatus(1, "h:9", "replica", "waiting")
    assert progress("a", GONE, unknown).endswith(
        "does not answer: waiting, it is not known how far it is behind"
    )


@pytest.mark.parametrize(
    ("lag_bytes", "said"),
    [
        (None, "Nobody knows how much of a is missing"),
        (2048, "2.0 KiB were missing here"),
        (0, "nothing was"),
    ],
)
def test_what_force_may_cost(lag_bytes: int | None, said: str) -> None:
    text = "\n".join(consequences("a", GONE, NodeStatus(1, "h:9", "replica", "waiting", lag_bytes)))
    assert said in text and "ARE LOST" in text and "still runs" not in text


def test_force_does_not_allow_two_masters() -> None:
    assert "h:1 still runs. Stop it first" in consequences("a", RUNS, COPY)[0]
