"""The state folder of a console that runs, and links for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from metaq.console.access.links import Links
from metaq.console.access.roles import Role
from metaq.console.place import FirstLinks, Place, new_link, running_address
from metaq.errors import CommandError

ADDRESS = "http://127.0.0.1:8080/metaq/"


def test_a_running_console_is_found_and_gets_links(tmp_path: Path) -> None:
    folder = tmp_path / "console"
    assert running_address(folder) is None
    place = Place.claim(folder)
    first = place.announce(ADDRESS)
    assert running_address(folder) == ADDRESS == first.address
    made = new_link(folder, Role.viewer)
    links = Links(folder)
    for link, role in (
        (first.links.operator, Role.operator),
        (first.links.viewer, Role.viewer),
        (made, Role.viewer),
    ):
        address, _, token = link.partition("?token=")
        assert (address, links.spend(token)) == (ADDRESS, role)
    with pytest.raises(CommandError, match="another console uses"):
        Place.claim(folder)
    place.leave()
    place.leave()
    assert running_address(folder) is None
    with pytest.raises(CommandError, match="no console runs with"):
        new_link(folder, Role.viewer)


def test_a_start_forgets_the_links_of_the_start_before(tmp_path: Path) -> None:
    place = Place.claim(tmp_path)
    old = place.announce(ADDRESS).links.operator
    new = place.announce(ADDRESS).links.operator
    spent = [Links(tmp_path).spend(link.partition("?token=")[2]) for link in (old, new)]
    assert spent == [None, Role.operator]
    place.leave()


def test_the_links_of_a_start_are_in_a_private_file_until_it_stops(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "console"
    folder.mkdir(mode=0o755)
    (folder / "sign-in-links.json").symlink_to(victim)
    place = Place.claim(folder)
    announced = place.announce(ADDRESS)
    file = announced.links_file
    assert file.parent == folder and not file.is_symlink() and victim.read_bytes() == b"precious"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert msgspec.json.decode(file.read_bytes(), type=FirstLinks) == announced.links
    place.leave()
    assert not file.exists()
    following = Place.claim(folder)
    following.announce(ADDRESS)
    place.leave()
    assert file.exists(), "only the console that holds the folder removes it"
    following.leave()


def test_another_account_makes_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place.claim(tmp_path)
    place.announce(ADDRESS)
    before = sorted((tmp_path / "links").iterdir())
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(CommandError, match="this account cannot make links") as refused:
        new_link(tmp_path, Role.operator)
    assert "this process runs as user 54321" in refused.value.hint
    assert sorted((tmp_path / "links").iterdir()) == before
    place.leave()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "console"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CommandError, match=f"other accounts may write to {folder}") as refused:
        Place.claim(folder, flag="--data")
    assert f"`chmod go-w {folder}`" in refused.value.hint and "--data" in refused.value.hint
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)
    Place.claim(folder).leave()


def test_a_folder_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(CommandError, match=f"{tmp_path} belongs to another account") as refused:
        Place.claim(tmp_path)
    assert "choose another folder with --state" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot be used for the console") as refused:
        Place.claim(tmp_path / "file" / "console")
    assert refused.value.hint == "choose another folder with --state"
