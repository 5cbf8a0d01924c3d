"""One-time links."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from metaq.console.access import links
from metaq.console.access.links import LINKS_MAX, Links
from metaq.console.access.roles import Role


def test_a_link_works_once(tmp_path: Path) -> None:
    made = Links(tmp_path)
    operator, viewer = made.create(Role.operator), made.create(Role.viewer, expires_after_s=None)
    other_process = Links(tmp_path)
    assert other_process.spend(viewer) is Role.viewer
    assert other_process.spend(operator) is Role.operator
    assert made.spend(operator) is None
    assert made.spend(viewer) is None


def test_of_many_who_come_at_once_one_gets_in(tmp_path: Path) -> None:
    made = Links(tmp_path)
    token = made.create(Role.operator)
    begin = threading.Barrier(8)
    found: list[Role | None] = []

    def spend() -> None:
        begin.wait(30)
        found.append(made.spend(token))

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(role is not None for role in found) == [False] * 7 + [True]


def test_a_wrong_secret_does_not_use_up_the_link(tmp_path: Path) -> None:
    made = Links(tmp_path)
    token = made.create(Role.operator)
    name, _, secret = token.partition(".")
    wrong = ("A" if secret[0] != "A" else "B") + secret[1:]
    for guess in (
        "",
        "x",
        name,
        f"{name}.",
        f"{name}.{wrong}",
        f"../links/{token}",
        token + "A",
        f"{token}\n",
    ):
        assert made.spend(guess) is None
    assert made.spend(token) is Role.operator


def test_the_disk_has_no_secret_and_is_private(tmp_path: Path) -> None:
    token = Links(tmp_path).create(Role.operator)
    (file,) = (tmp_path / "links").iterdir()
    assert token.partition(".")[2] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_links_grow_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Links(tmp_path)
    for_an_hour, for_ever = made.create(Role.operator), made.create(Role.operator, expires_after_s=None)
    later_ms = links._now_ms() + 3_600_000
    monkeypatch.setattr(links, "_now_ms", lambda: later_ms)
    assert made.spend(for_an_hour) is None
    assert made.spend(for_ever) is Role.operator


def test_old_and_damaged_files_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Links(tmp_path)
    first = made.create(Role.operator, expires_after_s=None)
    damaged = tmp_path / "links" / f"{'0' * 16}.json"
    damaged.write_text("{")
    assert made.spend(f"{'0' * 16}.{'A' * 43}") is None
    now_ms = links._now_ms()
    for step in range(LINKS_MAX):
        monkeypatch.setattr(links, "_now_ms", lambda step=step: now_ms + 10 + step)
        made.create(Role.viewer, expires_after_s=None)
    assert len(list((tmp_path / "links").iterdir())) == LINKS_MAX
    assert not damaged.exists()
    assert made.spend(first) is None
    made.clear()
    assert not list((tmp_path / "links").iterdir())
