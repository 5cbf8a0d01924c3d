"""Limits of topics and groups, over real sockets and a real store; time passes only when the test says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from metaq import _core
from metaq.settings import BrokerSettings, GroupPolicy, ServerSettings, TopicPolicy
from tests.support.broker_cluster import small_store
from tests.support.waiting import eventually, wait_until
from tests.support.wire import Wire, batch, pull_fields, send_fields

MIB = 1024 * 1024
ONEWAY = 2


@dataclasses.dataclass
class Plane:
    store: _core.Store
    listener: _core.Listener
    plane: _core.BrokerPlane
    clock: _core.Clock

    def connect(self) -> Wire:
        return Wire(self.listener.port)

    def limit_topic(self, messages: int = 0, size: int = 0, topic: str = "orders") -> None:
        policy = TopicPolicy(topic, 4, 4, 6, send_messages_per_second=messages, send_bytes_per_second=size)
        self.plane.put_topics([policy])

    def limit_group(self, messages: int = 0, size: int = 0) -> None:
        group = GroupPolicy("readers", consume_messages_per_second=messages, consume_bytes_per_second=size)
        self.plane.put_groups([group])

    def count(self, name: str) -> int:
        for figures in (self.listener.figures(), self.plane.figures()):
            if hasattr(figures, name):
                return int(getattr(figures, name))
        raise LookupError(name)

    def until_waiting(self, wanted: int) -> None:
        eventually(
            lambda: self.count("limits_waiting"), lambda found: found == wanted, 60, f"{wanted} waiting"
        )


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Callable[..., Plane]]:
    planes: list[Plane] = []

    def make(**broker: object) -> Plane:
        settings = small_store(tmp_path / "store")
        clock = _core.Clock.manual(1_700_000_000_000)
        store = _core.Store(settings, clock)
        listener = _core.Listener(ServerSettings(host="127.0.0.1", port=0), serves_broker=True)
        plane = _core.BrokerPlane(
            listener,
            store,
            BrokerSettings("cluster", "broker-a", "127.0.0.1:0", **broker),  # type: ignore[arg-type]
        )
        planes.append(Plane(store, listener, plane, clock))
        planes[-1].limit_topic()
        planes[-1].limit_group()
        plane.start()
        listener.start()
        return planes[-1]

    yield make
    for each in planes:
        each.plane.stop()
        each.listener.stop()
        each.store.close()


def fill(wire: Wire, queues: int = 1, count: int = 100) -> None:
    for queue in range(queues):
        wire.call(
            320, send_fields("orders", queue) | {"m": "true"}, batch(*(b"%d" % n for n in range(count)))
        )


def write_probes(running: Plane, wire: Wire, *due_ms: int) -> list[int]:
    """Writes sends to a limited topic of their own that are answered after these times."""
    running.limit_topic(size=10_000, topic="probes")
    assert wire.send("probes", b"x" * 1_000).code == 0, "a tenth of a second's worth goes through at once"
    waits_ms = [after - before for before, after in pairwise((0, *due_ms))]
    return [wire.write(310, send_fields("probes"), b"x" * 10 * wait_ms) for wait_ms in waits_ms]


def bodies(frame: _core.Frame) -> list[bytes]:
    return [record.body for record in _core.decode_records(frame.body)]


def test_a_topic_over_its_limit_answers_later_and_not_with_errors(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_topic(messages=100)
    with running.connect() as wire:
        asked = [wire.write(310, send_fields("orders"), b"x") for _ in range(20)]
        answers = [wire.read() for _ in range(10)]  # A tenth of a second's worth goes through at once.
        running.until_waiting(10)
        for _ in range(2):
            running.clock.advance_ms(50)
            answers += [wire.read() for _ in range(5)]
            running.until_waiting(20 - len(answers))
        assert [answer.opaque for answer in answers] == asked
        assert {answer.code for answer in answers} == {0}
        assert running.count("sends_slowed") == 10
        assert running.count("sends_over_limit") == 0


def test_a_topic_far_over_its_limit_refuses_and_says_why(plane: Callable[..., Plane]) -> None:
    running = plane(send_hold_ms_max=1_000, send_refusal_hold_ms=333)
    running.limit_topic(messages=10)
    with running.connect() as wire:
        asked = [wire.write(310, send_fields("orders"), b"x") for _ in range(14)]
        assert wire.read().opaque == asked[0]
        running.until_waiting(13)
        running.clock.advance_ms(334)  # Even the refusals wait.
        early = {frame.opaque: frame.code for frame in (wire.read() for _ in range(5))}
        assert early == {asked[1]: 0, asked[2]: 0, asked[3]: 0, asked[12]: 2, asked[13]: 2}
        running.clock.advance_ms(1_000)
        assert {wire.read().code for _ in range(8)} == {0}
        assert running.store.max_offset("orders", 0) == 12
        assert running.count("sends_over_limit") == 2


def test_a_refusal_names_the_limit(plane: Callable[..., Plane]) -> None:
    running = plane(send_hold_ms_max=0, send_refusal_hold_ms=0)
    running.limit_topic(messages=1, size=1_000)
    with running.connect() as wire:
        for _ in range(2):
            wire.write(310, send_fields("orders"), b"x" * 500)
        answers = sorted((wire.read() for _ in range(2)), key=lambda frame: frame.code)
        assert [answer.code for answer in answers] == [0, 2]
        for part in ("[FLOW]", "topic[orders]", "1 messages and 1000 bytes a second", "metaq topic limit"):
            assert part in (answers[1].remark or "")


def test_a_batch_counts_its_messages_and_is_never_too_large(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_topic(messages=100)
    with running.connect() as wire:
        fill(wire, count=50)  # Five times what goes through at once.
        late = wire.write(310, send_fields("orders"), b"x")
        (probe,) = write_probes(running, wire, 409)
        running.until_waiting(2)
        running.clock.advance_ms(409)
        assert wire.read().opaque == probe
        assert running.count("limits_waiting") == 1
        running.clock.advance_ms(1)
        assert wire.read().opaque == late


def test_bytes_are_limited_too(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_topic(size=10_000)
    with running.connect() as wire:
        assert wire.send("orders", b"x" * 1_000).code == 0
        late = wire.write(310, send_fields("orders"), b"x" * 500)
        running.until_waiting(1)
        running.clock.advance_ms(50)
        assert wire.read().opaque == late


def test_oneway_sends_beyond_the_bound_are_dropped(plane: Callable[..., Plane]) -> None:
    running = plane(send_hold_ms_max=100)
    running.limit_topic(messages=100)
    with running.connect() as wire:
        for _ in range(40):
            wire.write(310, send_fields("orders"), b"x", flag=ONEWAY)
        wire.call(30, {"topic": "orders", "queueId": 0})
        assert running.store.max_offset("orders", 0) == 21
        assert running.count("sends_over_limit") == 19


def test_a_full_waiting_room_refuses_at_once(plane: Callable[..., Plane]) -> None:
    running = plane(send_hold_max=6)  # All come from one address, which may have half of them.
    running.limit_topic(messages=10)
    with running.connect() as wire:
        asked = [wire.write(310, send_fields("orders"), b"x") for _ in range(6)]
        answers = {frame.opaque: frame.code for frame in (wire.read() for _ in range(3))}
        assert answers == {asked[0]: 0, asked[4]: 2, asked[5]: 2}


def test_a_new_limit_counts_anew_and_the_same_one_goes_on(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_topic(messages=100)
    with running.connect() as wire:
        fill(wire, count=100)
        running.limit_topic(messages=100)  # Like a change of any other setting of the topic.
        wire.write(310, send_fields("orders"), b"x")
        running.until_waiting(1)
        running.limit_topic(messages=101)
        assert wire.send("orders", b"x").code == 0
        running.limit_topic()
        fill(wire, count=1_000)
        assert wire.send("orders", b"x").code == 0
        running.until_waiting(1)


def test_a_group_is_served_at_its_rate(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_group(messages=100)
    with running.connect() as wire:
        fill(wire)
        assert len(bodies(wire.pull("orders", 0))) == 10
        found = 10
        for _ in range(5):
            asked = wire.write(11, pull_fields("orders", 0, found, suspend_ms=20_000))
            running.until_waiting(1)
            running.clock.advance_ms(100)
            answer = wire.read()
            assert (answer.opaque, answer.code) == (asked, 0)
            assert bodies(answer) == [b"%d" % n for n in range(found, found + 10)]
            found += 10
        assert running.count("messages_out") == 60
        assert running.count("pulls_paced") == 5


def test_a_group_limited_in_bytes_owes_what_it_got(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_group(size=10_000)
    with running.connect() as wire:
        wire.send("orders", b"x" * 5_000)
        wire.send("orders", b"x" * 100)
        assert len(bodies(wire.pull("orders", 0))) == 1, "one is given however large it is"
        pull = wire.write(11, pull_fields("orders", 0, 1, suspend_ms=20_000))
        probes = write_probes(running, wire, 400, 401)
        running.until_waiting(3)
        # The server answers sends before pulls. The second probe shows that the pulls were looked at, too.
        for probe, step_ms in zip(probes, (400, 1), strict=True):
            running.clock.advance_ms(step_ms)
            assert wire.read().opaque == probe
        assert running.count("limits_waiting") == 1
        running.clock.advance_ms(199)
        answer = wire.read()
        assert (answer.opaque, len(bodies(answer))) == (pull, 1)


def test_no_queue_starves_even_where_pulls_run_out_of_time(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_group(messages=1)
    offsets = dict.fromkeys(range(4), 0)
    with running.connect() as wire:
        fill(wire, queues=4, count=10)
        asked = {wire.write(11, pull_fields("orders", q, 0, suspend_ms=300)): q for q in offsets}

        def take() -> int:
            """Reads the next answer, and pulls from its queue again."""
            answer = wire.read()
            queue = asked.pop(answer.opaque)
            offsets[queue] += len(bodies(answer))
            assert int(answer.fields["nextBeginOffset"]) == offsets[queue]
            asked[wire.write(11, pull_fields("orders", queue, offsets[queue], suspend_ms=300))] = queue
            return answer.code

        for _ in range(12):
            while (code := take()) != 0:
                assert code == 20
            # However slow the machine is, pulls that ran out of time wait again when the next turn comes.
            while running.count("limits_waiting") < 4:
                if wire.is_answered(0.005):
                    assert take() == 20
            running.clock.advance_ms(1_000)
    # A queue misses a turn only if its pull is on its way at that time.
    assert min(offsets.values()) >= 2, offsets


def test_a_pull_that_does_not_wait_has_to_ask_again(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_group(messages=1)
    with running.connect() as wire:
        fill(wire)
        assert len(bodies(wire.pull("orders", 0))) == 1
        answer = wire.pull("orders", 1)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "1")
        assert wire.pull("orders", 100).code == 19, "a pull at the end of a queue is answered at once"


def test_a_pull_that_waits_for_messages_then_waits_for_the_limit(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_group(messages=1)
    with running.connect() as consumer, running.connect() as producer:
        producer.send("orders", b"first")
        assert bodies(consumer.pull("orders", 0)) == [b"first"]
        consumer.write(11, pull_fields("orders", 0, 1, suspend_ms=20_000))
        wait_until(lambda: running.count("held") == 1)
        producer.send("orders", b"second")
        running.until_waiting(1)
        running.clock.advance_ms(1_000)
        assert bodies(consumer.read()) == [b"second"]


def test_waiting_pulls_follow_resets_and_changes_of_the_limit(plane: Callable[..., Plane]) -> None:
    running = plane()
    running.limit_group(messages=1)
    with running.connect() as wire:
        fill(wire, queues=2)
        wire.pull("orders", 0)
        reset = wire.write(11, pull_fields("orders", 0, 1, suspend_ms=20_000))
        freed = wire.write(11, pull_fields("orders", 1, 0, suspend_ms=20_000))
        running.until_waiting(2)
        running.plane.reset_offset("readers", "orders", 0, 50)
        answer = wire.read()
        assert (answer.opaque, answer.code, answer.fields["nextBeginOffset"]) == (reset, 21, "50")
        running.limit_group()
        answer = wire.read()
        assert (answer.opaque, len(bodies(answer))) == (freed, 32)


def test_waiting_requests_are_answered_when_the_server_stops(plane: Callable[..., Plane]) -> None:
    running = plane()
    # Slow enough that the second send still waits when the pull does.
    running.limit_topic(messages=1)
    running.limit_group(messages=1)
    with running.connect() as wire:
        wire.send("orders", b"x")
        wire.pull("orders", 0)
        send = wire.write(310, send_fields("orders"), b"y")
        pull = wire.write(11, pull_fields("orders", 0, 1, suspend_ms=20_000))
        running.until_waiting(2)
        running.plane.stop()
        assert {frame.opaque: frame.code for frame in (wire.read(), wire.read())} == {send: 0, pull: 20}
