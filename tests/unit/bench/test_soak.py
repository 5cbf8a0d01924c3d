"""Which changes the soak calls growth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.soak.run import Flowed, Outcome
from bench.soak.watch import Bounds, Sample, Watched, open_descriptors

BOUNDS = Bounds(own_bytes=10e6, descriptors=4)


def _watched(own_mb: list[int], descriptors: list[int]) -> Watched:
    samples = [
        Sample(float(at), mb * 1_000_000, count)
        for at, (mb, count) in enumerate(zip(own_mb, descriptors, strict=True))
    ]
    return Watched("some", 1, samples=samples)


def test_a_start_and_a_peak_are_no_growth() -> None:
    assert _watched([20] * 2 + [100] * 8, [3] * 2 + [9] * 8).verdict(BOUNDS).is_flat
    assert _watched([100] * 5 + [500] + [100] * 4, [9] * 10).verdict(BOUNDS).is_flat


@pytest.mark.parametrize(
    ("own_mb", "descriptors"),
    [(list(range(100, 200, 5)), [9] * 20), ([100] * 20, list(range(20)))],
    ids=["memory", "descriptors"],
)
def test_what_grows_all_the_time_is_found(own_mb: list[int], descriptors: list[int]) -> None:
    verdict = _watched(own_mb, descriptors).verdict(BOUNDS)
    assert not verdict.is_flat
    assert "GROWS" in verdict.line()


def test_files_of_the_store_may_be_open_unless_they_are_deleted(tmp_path: Path) -> None:
    # A process of its own: here, threads of other tests may open and close what they like.
    program = "import sys; one, two = map(open, sys.argv[1:], 'ww'); print(flush=True); sys.stdin.read()"
    names = [str(tmp_path / "one"), str(tmp_path / "two")]
    with subprocess.Popen(
        [sys.executable, "-c", program, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        others = open_descriptors(child.pid, tmp_path)
        assert open_descriptors(child.pid, None) == others + 2
        (tmp_path / "two").unlink()
        assert open_descriptors(child.pid, tmp_path) == others + 1
        child.stdin.close()


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="3 samples"):
        _watched([1, 1, 1], [1, 1, 1]).verdict(BOUNDS)


@pytest.mark.parametrize("flow", [Flowed(10, 9), Flowed(0, 0)], ids=["lost", "nothing"])
def test_messages_that_do_not_come_back_are_a_failure(flow: Flowed) -> None:
    assert Outcome(1.0, [], {"poll": flow}).failures
    assert not Outcome(1.0, [], {"poll": Flowed(10, 11)}).failures
