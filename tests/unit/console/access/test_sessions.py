"""Sessions: found by their cookie, bounded in number and age, kept over a restart."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from metaq.console.access import sessions
from metaq.console.access.roles import Identity, Role
from metaq.console.access.sessions import Sessions
from tests.support.waiting import run


def opened(folder: Path, *, sessions_max: int = 10, age_s_max: float = 100.0) -> Sessions:
    return Sessions(folder, sessions_max=sessions_max, age_s_max=age_s_max)


def test_a_cookie_leads_to_its_identity_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = opened(tmp_path)
        cookie, identity = await before.create("operator", Role.operator)
        other_cookie, other = await before.create("viewer", Role.viewer)
        assert (
            before.find(cookie)
            == identity
            == Identity("operator", Role.operator, identity.session, identity.csrf)
        )
        assert identity.csrf != other.csrf
        after = opened(tmp_path)
        assert (after.find(cookie), after.find(other_cookie)) == (identity, other)
        assert after.console_id == before.console_id
        await after.remove(identity.session)
        assert after.find(cookie) is None and not after.is_open(identity.session)
        assert opened(tmp_path).find(cookie) is None
        assert opened(tmp_path).find(other_cookie) == other

    run(scenario)


def test_parts_of_cookies_open_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        known = opened(tmp_path)
        (first, _), (second, _) = [await known.create("viewer", Role.viewer) for _ in range(2)]
        mixed = first.partition(".")[0] + "." + second.partition(".")[2]
        for cookie in ("", ".", mixed, first[:-1], f"{first}=", first.partition(".")[0]):
            assert known.find(cookie) is None
        file = tmp_path / "sessions.json"
        assert first.partition(".")[2] not in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    run(scenario)


def test_the_oldest_session_makes_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        known = opened(tmp_path, sessions_max=3)
        cookies = [(await known.create("viewer", Role.viewer))[0] for _ in range(5)]
        assert [known.find(cookie) is not None for cookie in cookies] == [False, False, True, True, True]
        assert len(known) == 3

    run(scenario)


def test_viewers_sign_no_operator_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        known = opened(tmp_path, sessions_max=3)
        first = (await known.create("operator", Role.operator))[0]
        viewers = [(await known.create("viewer", Role.viewer))[0] for _ in range(5)]
        second = (await known.create("operator", Role.operator))[0]
        assert [known.find(cookie) is not None for cookie in (first, second, viewers[-1])] == [True] * 3
        third, fourth = [(await known.create("operator", Role.operator))[0] for _ in range(2)]
        # Only operators are left, so the oldest of them goes.
        assert [known.find(cookie) is not None for cookie in (first, second, third, fourth)] == [
            *(False, True, True, True)
        ]

    run(scenario)


def test_sessions_grow_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        known = opened(tmp_path, age_s_max=100.0)
        now_ms = sessions._now_ms()
        monkeypatch.setattr(sessions, "_now_ms", lambda: now_ms)
        cookie, identity = await known.create("viewer", Role.viewer)
        monkeypatch.setattr(sessions, "_now_ms", lambda: now_ms + 99_999)
        assert known.find(cookie) == identity
        monkeypatch.setattr(sessions, "_now_ms", lambda: now_ms + 100_000)
        assert known.find(cookie) is None and not known.is_open(identity.session)
        await known.create("viewer", Role.viewer)
        assert len(known) == 1

    run(scenario)


def test_a_damaged_file_signs_everybody_out(tmp_path: Path) -> None:
    (tmp_path / "sessions.json").write_text('{"console":')
    assert len(opened(tmp_path)) == 0
