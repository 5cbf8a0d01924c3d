"""Control state on the links to replicas: it arrives whole, however much it is and however slow they are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest

from metaq._core import Clock, LinkListener, LinkSocket, ReplicationFollower, ReplicationHub, Store
from metaq.broker.replication import state_stream
from metaq.broker.replication.state_stream import Kind, StateFeed, StateIntake, StateMessage
from metaq.journal.files import START
from metaq.journal.journal import Entry, Journal, Point
from metaq.settings import ReplicationSettings
from tests.support.broker_cluster import small_store

LIMIT_BYTES = 64 * 1024
LINK = 7
VALUE = b"x" * 1_000
KEYS = 3 * LIMIT_BYTES // len(VALUE)


class PacedHub:
    """A hub with one link, whose replica reads when the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, int, bytes]] = deque()
        self.waiting_bytes_peak = 0
        self.is_open = True

    def state_waiting(self, link: int) -> int | None:
        assert link == LINK
        return sum(len(body) for *_, body in self.waiting) if self.is_open else None

    def send_state(self, link: int, epoch: int, version: int, entry: bytes) -> bool:
        waiting_bytes = self.state_waiting(link)
        if waiting_bytes is None or waiting_bytes > LIMIT_BYTES or len(entry) > LIMIT_BYTES:
            self.is_open = False
            return False
        self.waiting.append((epoch, version, entry))
        self.waiting_bytes_peak = max(self.waiting_bytes_peak, waiting_bytes + len(entry))
        return True

    def close_link(self, link: int, reason: str) -> None:
        raise AssertionError(reason)


class Pair:
    """The journals of a master and of its replica, and the stream between them."""

    def __init__(self, directory: Path) -> None:
        self.master = Journal.open(directory / "master", history_bytes_max=LIMIT_BYTES // 2)
        self.replica = Journal.open(directory / "replica")
        self.hub = PacedHub()
        self.feed = StateFeed(self.master, cast(ReplicationHub, self.hub), LIMIT_BYTES)
        self.intake = StateIntake(self.replica)

    async def put(self, **values: bytes | None) -> None:
        await self.master.write([("topics", key, value) for key, value in values.items()])

    async def fill(self) -> None:
        for number in range(0, KEYS, 10):
            await self.put(**{f"t{key}": VALUE for key in range(number, number + 10)})

    def begin(self) -> None:
        self.feed.begin(LINK, self.replica.point)

    async def read(self) -> bool:
        """Reads one message. False if there is none, and none comes."""
        for _ in range(500):
            if self.hub.waiting:
                await self.intake.take([self.hub.waiting.popleft()])
                return True
            if not self.feed._sending:
                return False
            await asyncio.sleep(0.01)
        raise AssertionError("a message is still to come and does not")

    async def read_all(self) -> None:
        while await self.read():
            pass

    def check_same(self) -> None:
        assert self.replica.point == self.master.point
        assert contents(self.replica) == contents(self.master)
        assert self.hub.is_open
        assert self.hub.waiting_bytes_peak <= 2 * LIMIT_BYTES


def contents(journal: Journal) -> dict[str, bytes | None]:
    return {entry.key: entry.value for entry in journal.snapshot().entries}


@asynccontextmanager
async def pair_in(directory: Path) -> AsyncIterator[Pair]:
    pair = Pair(directory)
    try:
        yield pair
    finally:
        pair.feed.stop()
        await pair.master.close()
        await pair.replica.close()


def scenario(directory: Path, work: Callable[[Pair], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with pair_in(directory) as pair:
            await work(pair)

    asyncio.run(all_of_it())


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_stream, "ROOM_POLL_S", 0.001)


def test_more_control_state_than_may_wait_arrives_whole(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        await pair.fill()
        pair.begin()
        assert len(pair.hub.waiting) == 1, "the other parts wait until the link has room"
        await pair.read_all()
        assert len(contents(pair.replica)) >= KEYS
        pair.check_same()
        assert pair.hub.waiting_bytes_peak <= LIMIT_BYTES
        await pair.put(t0=b"after")
        assert len(pair.hub.waiting) == 1, "a link that has everything gets a change at once"
        await pair.read_all()
        pair.check_same()

    scenario(tmp_path, work)


def test_changes_during_the_parts_are_in_the_last_one(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        await pair.fill()
        pair.begin()
        for number in range(2 * KEYS):
            # More changes than the history of the journal holds, to old keys and new ones.
            await pair.put(**{f"t{number % 50}": VALUE + b"%d" % number, f"new{number}": b"1"})
            await pair.put(**{f"t{KEYS - 1}": None, f"new{number}": None if number % 2 else b"2"})
            if number % 8 == 0:
                await pair.read()
                assert pair.replica.point == START or not pair.intake.is_replacing
        await pair.read_all()
        assert f"t{KEYS - 1}" not in contents(pair.replica)
        assert not pair.intake.is_replacing
        pair.check_same()

    scenario(tmp_path, work)


def test_a_replica_that_falls_behind_starts_over(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        await pair.put(first=b"1")
        pair.begin()
        await pair.read_all()
        pair.check_same()
        for _ in range(3):
            await pair.fill()
            await pair.put(**{f"t{key}": None for key in range(KEYS)})
        assert pair.feed._backlogs[LINK].waiting_bytes <= LIMIT_BYTES
        await pair.put(last=b"1")
        await pair.read_all()
        assert contents(pair.replica)["last"] == b"1"
        pair.check_same()

    scenario(tmp_path, work)


def test_a_link_that_is_closed_is_forgotten(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        await pair.fill()
        pair.begin()
        pair.hub.is_open = False
        while pair.feed._sending:
            await asyncio.sleep(0.001)
        pair.feed.end(LINK)
        await pair.put(late=b"1")
        assert not pair.feed._backlogs and not pair.feed._sending

    scenario(tmp_path, work)


def test_nothing_is_sent_to_a_replica_that_has_everything(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        await pair.put(one=b"1")
        pair.feed.begin(LINK, Point(*pair.master.point))
        assert not pair.hub.waiting and not pair.feed._sending

    scenario(tmp_path, work)


def test_a_real_link_that_is_read_slowly_gets_everything(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        await pair.fill()
        settings = ReplicationSettings(state_bytes_max=LIMIT_BYTES, silence_ms_max=60_000)
        listener = LinkListener("127.0.0.1:0", 60_000)
        theirs = LinkSocket.connect(f"127.0.0.1:{listener.port}", 60_000)
        ours = None
        while ours is None:
            ours = listener.accept()
        hub = ReplicationHub(Store(small_store(tmp_path / "m"), Clock()), settings, [(1, 0)])
        feed = StateFeed(pair.master, hub, LIMIT_BYTES)
        follower = ReplicationFollower(
            Store(small_store(tmp_path / "r"), Clock()), settings, theirs, 1, (0, 0)
        )
        try:
            feed.begin(hub.add_link(ours, 2, 0), pair.replica.point)
            await pair.put(meanwhile=b"1")
            while pair.replica.point != pair.master.point:
                assert follower.figures().closed is None
                for message in follower.take_state():
                    await pair.intake.take([message])
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.005)
            assert contents(pair.replica) == contents(pair.master)
            assert [link.closed for link in hub.links()] == [None]
        finally:
            feed.stop()
            await asyncio.to_thread(follower.stop)
            await asyncio.to_thread(hub.stop)

    scenario(tmp_path, work)


def message(kind: Kind, *entries: Entry) -> tuple[int, int, bytes]:
    newest = entries[-1]
    return newest.epoch, newest.version, msgspec.msgpack.encode(StateMessage(kind, list(entries)))


def test_a_replaced_journal_is_returned_with_what_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path)
        intake = StateIntake(journal)
        first = [Entry(1, 1, "topics", "old", b"1"), Entry(1, 2, "topics", "kept", b"1")]
        assert await intake.take([message(Kind.ENTRIES, *first)]) == []
        parts = [Entry(2, 7, "topics", "kept", b"2"), Entry(2, 9, "topics", "new", b"2")]
        behind = Entry(2, 10, "topics", "new", b"3")
        replaced = await intake.take(
            [
                message(Kind.PART, parts[0]),
                message(Kind.LAST_PART, parts[1]),
                message(Kind.ENTRIES, behind),
            ]
        )
        assert replaced == [Entry(2, 10, "topics", "old", None), parts[0], behind]
        assert journal.point == (2, 10)
        await journal.close()

    asyncio.run(scenario())
