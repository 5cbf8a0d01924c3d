"""Bytes that the broker copies on request."""

from __future__ import annotations

import pytest

from metaq.broker.state import copy_budget
from metaq.broker.state.copy_budget import CopyBudget
from metaq.protocol.errors import Refused


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_address_has_a_rate_and_a_reserve() -> None:
    time = Time()
    budget = CopyBudget(1_000, time)
    for _ in range(4):
        budget.charge("a", 1_000)
    with pytest.raises(Refused, match=r"\[FLOW\].*send_back_bytes_per_second") as raised:
        budget.charge("a", 1)
    assert raised.value.code == 2
    budget.charge("b", 1_000)
    time.now_s += 0.5
    budget.check("a")
    # A large message passes when its turn comes, and is paid for afterwards.
    budget.charge("a", 1_000_000)
    time.now_s += 999
    with pytest.raises(Refused):
        budget.check("a")
    time.now_s += 1
    budget.check("a")


def test_no_limit() -> None:
    budget = CopyBudget(0)
    for _ in range(10):
        budget.charge("a", 2**40)
    budget.check("a")


def test_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_budget, "HOSTS_MAX", 10)
    time = Time()
    budget = CopyBudget(1_000, time)
    for number in range(100):
        budget.charge(str(number), 1_000)
    assert len(budget._paid_s) == 10
    time.now_s += 2
    budget.charge("a", 1)
    assert list(budget._paid_s) == ["a"]
