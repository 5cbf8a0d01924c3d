"""The judgement of the run of attacks: each kind of harm is found, and its frames can be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from bench.soak.attackers import IDLE_CONNECTIONS, TRICKLING_CONNECTIONS, Tally
from bench.soak.hostile import Figures
from metaq._core import FrameDecoder, encode_frame
from tests.support.hostile.healthy import KINDS, Timing, Verdict, misplaced
from tests.support.hostile.mutation import Mutator, as_binary, as_json, parsed
from tests.support.plain_client import frame

MIB = 1024 * 1024


def sound() -> Figures:
    """A run in which everything went well."""
    counts = {"mutated frames": 100, "generated requests": 50, "idle at once": IDLE_CONNECTIONS}
    counts["trickling at once"] = TRICKLING_CONNECTIONS
    return Figures(
        seed=1,
        frames_wanted=100,
        generated_wanted=50,
        quiet={kind: Timing([0.01] * 100) for kind in KINDS},
        attacked={kind: Timing([0.12] * 100) for kind in KINDS},
        tallies=[Tally("all", Counter(counts))],
        verdict=Verdict(10, []),
        own_before=50 * MIB,
        own_peak=300 * MIB,
        own_after=60 * MIB,
        budget=256 * MIB,
        clients_budget=128 * MIB,
        reported_peak=250 * MIB,
    )


def harm(figures: Figures, name: str, value: object) -> None:
    setattr(figures, name, value)


HARMS: dict[str, tuple[Callable[[Figures], None], str]] = {
    "slow answers": (
        lambda run: harm(run, "attacked", run.attacked | {"send": Timing([0.14] * 100)}),
        "send: p99",
    ),
    "a refused request": (lambda run: harm(run, "failure_count", 1), "1 requests of the healthy client"),
    "too much memory": (lambda run: harm(run, "own_peak", 600 * MIB), "memory: peak 600 MiB"),
    "memory that stays": (lambda run: harm(run, "own_after", 200 * MIB), "memory: 200 MiB after"),
    "a budget that was passed": (lambda run: harm(run, "reported_peak", 257 * MIB), "for connections: 257"),
    "a lost message": (lambda run: harm(run, "verdict", Verdict(9, ["it is gone"])), "it is gone"),
    "no messages at all": (lambda run: harm(run, "verdict", Verdict(0, [])), "nothing was acknowledged"),
    "a lie that was believed": (lambda run: run.tallies[0].deceived.append("x"), "deceived: x"),
    "few frames": (lambda run: harm(run, "frames_wanted", 101), "only 100 of 101"),
    "few requests": (lambda run: harm(run, "generated_wanted", 151), "only 50 of 151 generated"),
    "a traceback": (lambda run: run.log_problems.append("1 tracebacks"), "1 tracebacks"),
    "a broker that does not start again": (lambda run: run.restart_problems.append("start 2"), "start 2"),
    "few connections": (
        lambda run: run.tallies[0].counts.subtract(["idle at once"]),
        "only 4,999 of 5,000 idle",
    ),
}


def test_a_sound_run_passes_and_is_told() -> None:
    assert sound().problems() == []
    assert any("send (100)" in line for line in sound().lines())


@pytest.mark.parametrize("what", HARMS)
def test_each_kind_of_harm_fails_the_run(what: str) -> None:
    figures = sound()
    do, says = HARMS[what]
    do(figures)
    [problem] = figures.problems()
    assert says in problem


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({0: b"a"}, "b'b' was acknowledged at 2/1, where None is"),
        ({0: b"b", 1: b"a"}, "b'a' was acknowledged at 2/0, where b'b' is"),
        ({0: b"a", 1: b"b", 2: b"a"}, "b'a' is in queue 2 2 times"),
        ({0: b"a", 1: b"b", 2: b"x"}, "b'x' in queue 2 is nobody's"),
    ],
    ids=["lost", "moved", "twice", "strange"],
)
def test_a_message_that_is_not_in_its_place_is_found(stored: dict[int, bytes], says: str) -> None:
    acknowledged, attempted = {0: b"a", 1: b"b"}, {b"a", b"b", b"c"}
    assert says in misplaced(2, acknowledged, stored, attempted)
    for unanswered in ({}, {2: b"c"}):
        assert misplaced(2, acknowledged, {0: b"a", 1: b"b"} | unanswered, attempted) == []


def test_a_seed_makes_the_same_frames_again() -> None:
    frames = [frame(10, {"topic": "t", "queueId": "1"}, b"body"), frame(34, {}, b"{}")]

    def made(seed: int) -> list[tuple[bytes, bool]]:
        mutator = Mutator(frames, seed)
        return [mutator.next() for _ in range(500)]

    assert made(7) == made(7)
    assert made(7) != made(8)
    assert len({data for data, _ in made(7)}) > 200


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("encode", [as_json, as_binary])
def test_a_frame_that_is_only_encoded_again_is_the_same_request(
    binary: bool, encode: Callable[[dict[str, object], bytes], bytes]
) -> None:
    """Otherwise most mutated frames would fail at their header, and reach nothing behind it."""
    fields = {"topic": "t", "subscription": "a || b", "i": "k\x01v\x02"}
    recorded = encode_frame(310, opaque=7, fields=fields, body=b"body", binary=binary)
    [found] = FrameDecoder().feed(encode(*parsed(recorded)))
    assert (found.code, found.opaque, dict(found.fields), found.body) == (310, 7, fields, b"body")
