"""Which connection makes room for a new one."""

from __future__ import annotations

import pytest

from metaq.connection_shares import ConnectionShares, address_share


class Listener:
    def __init__(self, shares: ConnectionShares) -> None:
        self.shares = shares
        self.closed: list[str] = []

    def connect(self, host: str, name: str) -> bool:
        self.last = self.shares.admit(host, lambda: self.closed.append(name))
        return self.last is not None


def test_an_address_over_its_share_loses_its_own_oldest_connection() -> None:
    listener = Listener(ConnectionShares(100, 2))
    listener.connect("10.0.0.9", "other")
    for name in "abc":
        assert listener.connect("10.0.0.1", name)
    assert listener.closed == ["a"]
    assert len(listener.shares) == 3


def test_a_full_listener_closes_the_oldest_of_the_address_with_most() -> None:
    listener = Listener(ConnectionShares(4, 4))
    listener.connect("10.0.0.9", "honest")
    for name in "abc":
        listener.connect("10.0.0.1", name)
    assert listener.connect("10.0.0.2", "new")
    assert listener.closed == ["a"]


def test_connections_at_work_are_kept() -> None:
    listener = Listener(ConnectionShares(1, 1, refused_max=1))
    for name in "ab":
        assert listener.connect("10.0.0.1", name)
        assert listener.last is not None
        listener.last.work()
    assert not listener.connect("10.0.0.1", "c")
    assert not listener.closed


def test_a_request_makes_a_connection_the_youngest() -> None:
    listener = Listener(ConnectionShares(2, 2))
    listener.connect("10.0.0.1", "a")
    first = listener.last
    assert first is not None
    listener.connect("10.0.0.1", "b")
    first.work()
    first.wait()
    listener.connect("10.0.0.1", "c")
    assert listener.closed == ["b"]
    first.leave()
    first.leave()
    first.wait()
    assert len(listener.shares) == 1


@pytest.mark.parametrize(
    ("host", "share"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::2%eth0", "2001:db8::/64"),
        ("", ""),
    ],
)
def test_hosts_of_one_customer_share(host: str, share: str) -> None:
    assert address_share(host) == share
