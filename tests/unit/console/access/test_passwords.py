"""Passwords, and the brake on guesses."""

from __future__ import annotations

import pytest

from metaq.console.access import passwords
from metaq.console.access.passwords import PasswordDirectory, SignInBrake
from metaq.console.access.roles import Identity, Role
from tests.support.waiting import run


def test_name_and_password_belong_together() -> None:
    async def scenario() -> None:
        directory = PasswordDirectory({Role.operator: "open sesame!", Role.viewer: "only looking"})
        assert await directory.sign_in("operator", "open sesame!") == Identity("operator", Role.operator)
        assert await directory.sign_in("viewer", "only looking") == Identity("viewer", Role.viewer)
        for name, password in (
            ("operator", "only looking"),
            ("viewer", "open sesame!"),
            ("admin", "open sesame!"),
            ("operator", ""),
            ("operator", "open sesame! "),
            ("operator", "\udc80" * 5000),
        ):
            assert await directory.sign_in(name, password) is None
        only_viewer = PasswordDirectory({Role.viewer: "only looking"})
        assert await only_viewer.sign_in("operator", "only looking") is None

    run(scenario)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_guesses_from_one_address_wait_longer_and_longer() -> None:
    clock = Clock()
    brake = SignInBrake(clock)
    assert [brake.begin("10.0.0.1") for _ in range(5)] == [0.0] * 5
    waits = []
    for _ in range(8):
        waits.append(brake.begin("10.0.0.1"))
        clock.now_s += waits[-1]
        assert brake.begin("10.0.0.1") == 0.0
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert brake.begin("10.0.0.2") == 0.0
    clock.now_s += 60.0
    assert brake.begin("10.0.0.1") == 0.0


def test_a_right_password_does_not_hide_wrong_ones() -> None:
    brake = SignInBrake(Clock())
    assert [brake.begin("10.0.0.1") for _ in range(4)] == [0.0] * 4
    for _ in range(20):
        # A viewer signs in between guesses at the operator's password, which costs and gains nothing.
        assert brake.begin("10.0.0.1") == brake.succeed("10.0.0.1", "viewer") == 0.0
    assert brake.begin("10.0.0.1") == 0.0
    assert brake.begin("10.0.0.1") == 1.0
    assert brake._total.count == 5


def test_sign_ins_with_one_name_are_slowed_down() -> None:
    clock = Clock()
    brake = SignInBrake(clock)
    waits = [brake.succeed(f"10.0.0.{n}", "viewer") for n in range(passwords._SIGN_INS_MAX + 1)]
    assert waits == [0.0] * passwords._SIGN_INS_MAX + [pytest.approx(1 / passwords._SIGN_INS_PER_S)]
    assert brake.succeed("10.0.0.1", "operator") == 0.0
    clock.now_s += waits[-1]
    assert brake.succeed("10.0.0.1", "viewer") == 0.0
    assert brake.succeed("10.0.0.1", "viewer") > 0


def test_failures_are_forgotten_in_time() -> None:
    clock = Clock()
    brake = SignInBrake(clock)
    for _ in range(5):
        brake.begin("10.0.0.1")
    assert brake.begin("10.0.0.1") > 0
    clock.now_s += passwords._FORGET_AFTER_S
    assert [brake.begin("10.0.0.1") for _ in range(5)] == [0.0] * 5


def test_guesses_from_many_addresses_share_a_rate() -> None:
    clock = Clock()
    brake = SignInBrake(clock)
    allowed = sum(brake.begin(f"10.0.{n // 250}.{n % 250}") == 0.0 for n in range(1000))
    assert allowed == passwords._TOTAL_FAILURES_MAX
    clock.now_s += 10.0
    allowed = sum(brake.begin(f"10.1.{n // 250}.{n % 250}") == 0.0 for n in range(1000))
    assert allowed == 10


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    brake = SignInBrake(Clock())
    assert [brake.begin(f"2001:db8::{n:x}") for n in range(1, 6)] == [0.0] * 5
    assert brake.begin("2001:db8::ffff%eth0") > 0
    assert brake.begin("2001:db8:0:1::1") == 0.0


def test_memory_is_bounded() -> None:
    clock = Clock()
    brake = SignInBrake(clock)
    for n in range(passwords._ADDRESSES_MAX + 500):
        clock.now_s += 1.0
        assert brake.begin(f"10.{n // 65536}.{n // 256 % 256}.{n % 256}") == 0.0
    assert len(brake._addresses) == passwords._ADDRESSES_MAX
