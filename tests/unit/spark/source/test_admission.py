"""Limits of bytes, on queues whose messages have any size."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from metaq.admin import QueuePart
from metaq.client.session.routes import Queue
from metaq.spark.source.admission import admit_bytes, admit_rows


class Sizes:
    """Queues by the sizes of their messages, measured as brokers do: never more than `step` at once."""

    def __init__(self, sizes: list[list[int]], step: int) -> None:
        self.sizes = {Queue("t", "b", number): found for number, found in enumerate(sizes)}
        self.step = step

    def measure(
        self, parts: Mapping[Queue, tuple[int, int]], bytes_max: Mapping[Queue, int] | None = None
    ) -> dict[Queue, QueuePart]:
        assert bytes_max is not None
        found = {}
        for queue, (first, end) in parts.items():
            reached, size_bytes = first, 0
            for size in self.sizes[queue][first : min(end, first + self.step)]:
                if size_bytes + size > bytes_max[queue]:
                    break
                size_bytes += size
                reached += 1
            found[queue] = QueuePart(reached, size_bytes)
        return found


@given(
    st.lists(st.lists(st.integers(1, 300), max_size=40), min_size=1, max_size=5),
    st.integers(1, 3_000),
    st.integers(1, 50),
    st.data(),
)
def test_a_batch_is_as_full_as_its_limit_allows(
    sizes: list[list[int]], bytes_max: int, step: int, data: st.DataObject
) -> None:
    there = Sizes(sizes, step)
    starts = {queue: data.draw(st.integers(0, len(found))) for queue, found in there.sizes.items()}
    ends = {queue: data.draw(st.integers(starts[queue], len(found))) for queue, found in there.sizes.items()}
    chosen = admit_bytes(starts, ends, bytes_max, there.measure)
    taken = [size for queue, end in chosen.items() for size in there.sizes[queue][starts[queue] : end]]
    assert all(starts[queue] <= chosen[queue] <= ends[queue] for queue in ends)
    if sum(taken) > bytes_max:
        assert len(taken) == 1, "only one that is too large by itself passes the limit"
        firsts = [there.sizes[queue][starts[queue]] for queue in ends if starts[queue] < ends[queue]]
        assert min(firsts) > bytes_max
        return
    left = bytes_max - sum(taken)
    for queue, end in chosen.items():
        assert end == ends[queue] or there.sizes[queue][end] > left, "one more would have fitted"


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=6), st.integers(1, 200))
def test_rows_are_exact(found: list[tuple[int, int]], rows_max: int) -> None:
    starts = {Queue("t", "b", number): first for number, (first, _) in enumerate(found)}
    ends = {queue: starts[queue] + found[queue.id][1] for queue in starts}
    chosen = admit_rows(starts, ends, rows_max)
    assert sum(chosen[queue] - starts[queue] for queue in starts) == min(
        rows_max, sum(length for _, length in found)
    )
