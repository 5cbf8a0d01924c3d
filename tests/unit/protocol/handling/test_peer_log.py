"""Log lines that peers cause."""

from __future__ import annotations

import logging

import pytest

from metaq.protocol.handling.peer_log import INTERVAL_S, LINES_MAX, PeerLog

_log = logging.getLogger(__name__)


class Peers:
    """A log with a clock that the test moves."""

    def __init__(self, reasons_max: int = 100) -> None:
        self.now_s = 0.0
        self.log = PeerLog(lambda: self.now_s, reasons_max)

    def write(self, peer: str, reason: object = None) -> None:
        self.log.write(_log, logging.WARNING, peer, "%s did it", peer, reason=reason)


def test_a_peer_gets_a_few_lines_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers()
    for port in range(1_000):
        peers.write(f"10.0.0.1:{port}")
    assert len(caplog.messages) == LINES_MAX, "a new connection is still the same peer"
    peers.write("10.0.0.2:1")
    peers.write("10.0.0.1:1", reason="another")
    assert len(caplog.messages) == LINES_MAX + 2
    peers.now_s += INTERVAL_S
    peers.write("10.0.0.1:7")
    assert caplog.messages[-1] == f"10.0.0.1:7 did it ({1_000 - LINES_MAX} lines like this one were left out)"
    peers.write("10.0.0.1:8")
    assert caplog.messages[-1] == "10.0.0.1:8 did it"


def test_a_machine_is_one_peer_with_all_addresses_of_its_subnet(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers()
    for number in range(1_000):
        peers.write(f"[2001:db8::{number:x}]:50000")
    assert len(caplog.messages) == LINES_MAX


def test_the_oldest_peers_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers(reasons_max=5)
    for number in range(1_000):
        peers.write(f"10.0.0.{number}:1")
    assert len(peers.log._lines) == 5


def test_a_line_that_nobody_reads_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    peers = Peers()
    peers.write("10.0.0.1:1")
    assert peers.log._lines == {}
