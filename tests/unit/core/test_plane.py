"""A broker plane that stops and is built again on a listener that lives on, over real sockets and a store."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from metaq import _core
from metaq.settings import (
    BrokerSettings,
    GroupPolicy,
    ServerSettings,
    StoreSettings,
    SubscriptionPolicy,
    TopicPolicy,
)
from tests.support.wire import Wire, pull_fields, send_fields

MIB = 1024 * 1024
NOT_AVAILABLE = 14
SETTINGS = BrokerSettings("cluster", "broker-a", "127.0.0.1:0", flush_timeout_ms=60_000)


class Node:
    """A store and a listener, on which planes come and go."""

    def __init__(self, directory: Path, closing: ExitStack) -> None:
        self.store = _core.Store(
            StoreSettings(
                directory=str(directory),
                commit_log_file_bytes=8 * MIB,
                consume_queue_file_entries=1000,
                index_slots=1000,
                index_entries=4000,
                allocation_step_bytes=MIB,
            ),
            _core.Clock(),
        )
        closing.callback(self.store.close)
        self.listener = _core.Listener(ServerSettings(host="127.0.0.1", port=0), serves_broker=True)
        closing.callback(self.listener.stop)
        self.listener.start()
        self._closing = closing

    def build(self, group: GroupPolicy | None = None, *, is_replica: bool = False) -> _core.BrokerPlane:
        plane = _core.BrokerPlane(self.listener, self.store, SETTINGS, is_replica=is_replica)
        plane.put_topics([TopicPolicy("orders", 4, 4, 6)])
        plane.put_groups([group or GroupPolicy("readers")])
        return plane

    def serve(self, group: GroupPolicy | None = None, *, is_replica: bool = False) -> _core.BrokerPlane:
        plane = self.build(group, is_replica=is_replica)
        plane.start()
        self._closing.callback(plane.stop)
        return plane

    def connect(self) -> Wire:
        return Wire(self.listener.port)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as closing:
        yield Node(tmp_path, closing)


@pytest.fixture
def other_node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as closing:
        yield Node(tmp_path / "other", closing)


def test_without_a_plane_hot_requests_are_refused_and_others_cross(node: Node) -> None:
    with node.connect() as wire:
        for code in _core.HOT_CODES:
            wire.write(code, {})
            answer = wire.read()
            assert answer.code == NOT_AVAILABLE
            assert answer.remark is not None and "[ROLE]" in answer.remark
        wire.write(34, {})
        (request,) = _drain(node.listener)
        assert request.code == 34


def test_a_name_servers_listener_hands_every_request_up() -> None:
    listener = _core.Listener(ServerSettings(host="127.0.0.1", port=0), serves_broker=False)
    listener.start()
    try:
        with Wire(listener.port) as wire:
            wire.write(_core.HOT_CODES[0], {})
            (request,) = _drain(listener)
            assert request.code == _core.HOT_CODES[0]
            request.retry()
            assert wire.read().code == 1, "there is nobody to hand it back to"
    finally:
        listener.stop()


def test_a_listener_has_one_plane_at_a_time_and_a_stopped_plane_stays_stopped(node: Node) -> None:
    plane = node.serve()
    with pytest.raises(RuntimeError, match="another broker plane"):
        node.build()
    plane.start()
    plane.stop()
    plane.stop()
    with pytest.raises(RuntimeError, match="build a new one"):
        plane.start()
    first, second = node.build(), node.build()
    first.start()
    with pytest.raises(RuntimeError, match="another broker plane"):
        second.start()
    with node.connect() as wire:
        assert wire.send("orders", b"x").code == 0, "the second one took nothing from the first"
    first.stop()


def test_a_request_that_is_handed_back_without_a_plane_is_refused(node: Node) -> None:
    plane = node.serve()
    with node.connect() as wire:
        wire.write(310, send_fields("fresh"), b"x")
        (request,) = _drain(node.listener)
        plane.stop()
        request.retry()
        assert wire.read().code == NOT_AVAILABLE


def test_sends_that_wait_for_the_disk_are_answered_and_stored_as_said(node: Node) -> None:
    with node.connect() as wire, node.connect() as other:
        for _ in range(10):
            plane = node.serve()
            before = node.store.max_offset("orders", 0)
            opaques = [wire.write(310, send_fields("orders"), b"x") for _ in range(50)]
            assert other.send("orders", b"y", queue=1).code == 0
            plane.stop()
            answers = {frame.opaque: frame.code for frame in (wire.read() for _ in opaques)}
            assert set(answers) == set(opaques)
            assert set(answers.values()) <= {0, NOT_AVAILABLE}
            stored = node.store.max_offset("orders", 0) - before
            assert stored == list(answers.values()).count(0)


def test_pulls_that_wait_for_a_function_are_answered(node: Node) -> None:
    wanted = SubscriptionPolicy("orders", 1, expression_type="FUNCTION", function=("pick", "pick()"))
    plane = node.serve(GroupPolicy("readers", subscriptions=(wanted,)))
    standing = {"sysFlag": "2", "subVersion": "1"}
    with node.connect() as wire:
        wire.send("orders", b"x")
        first = wire.write(11, pull_fields("orders", 0, 0, suspend_ms=300_000) | standing)
        batch = _until(lambda: plane.take_batch("pick", 10, MIB))
        second = wire.write(11, pull_fields("orders", 0, 0, suspend_ms=300_000) | standing)
        _until(lambda: plane.functions_wanted())
        plane.stop()
        assert (answer := wire.read()).opaque == second and answer.code == 20
        # Nobody wants the message, so the pull would wait for another one; a stopped plane answers it.
        batch.answer(b"\0")
        assert (answer := wire.read()).opaque == first and answer.code == 20


def test_a_replica_relays_to_the_master_that_it_was_given(node: Node, other_node: Node) -> None:
    node.serve(is_replica=True)
    other_node.serve()
    with node.connect() as wire:
        assert wire.send("orders", b"x").code == NOT_AVAILABLE
        wire.write(41, {"name": "value"}, b"body")
        (request,) = _drain(node.listener)
        assert not request.relay(), "there is no master"
        node.listener.set_relay(f"127.0.0.1:{other_node.listener.port}")
        assert wire.send("orders", b"x").code == 0
        assert request.relay()
        (relayed,) = _drain(other_node.listener)
        assert (relayed.code, relayed.body, relayed.fields["name"]) == (41, b"body", "value")
        relayed.respond(0, remark="locked")
        assert wire.read().remark == "locked"
        node.listener.set_relay(None)
        assert wire.send("orders", b"x").code == NOT_AVAILABLE
    assert (node.store.max_offset("orders", 0), other_node.store.max_offset("orders", 0)) == (0, 1)
    with pytest.raises(ValueError, match="nowhere"):
        node.listener.set_relay("nowhere")


def test_appends_wait_while_they_are_held(node: Node) -> None:
    plane = node.serve()
    with node.connect() as wire:
        node.listener.hold_appends(60_000)
        opaque = wire.write(310, send_fields("orders"), b"x")
        assert wire.pull("orders", 0).code == 19, "reads go on"
        plane.stop(wait_confirmed=False)
        node.serve()
        assert node.listener.release_appends()
        assert (answer := wire.read()).opaque == opaque and answer.code == 0
    assert not node.listener.release_appends(), "nothing was held any more"


T = TypeVar("T")


def _until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def _drain(listener: _core.Listener) -> list[_core.Request]:
    ready, _, _ = select.select([listener.fileno()], [], [], 60)
    assert ready
    return [event for event in listener.drain() if isinstance(event, _core.Request)]
