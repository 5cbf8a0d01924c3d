"""Files and folders are private from the start, whatever the umask."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.client.consumer.offsets.storage import FileOffsets
from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore
from metaq.client.session.routes import Queue
from metaq.durable import replace_file
from metaq.held_file import HeldFile
from metaq.journal import Journal
from metaq.metadata import MetadataFile
from metaq.nameserver.key_values import KeyValues
from metaq.private_files import create_private, open_private, whose


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    former = os.umask(0o000)
    yield
    os.umask(former)


def modes(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in directory.rglob("*")
    }


def check_private(directory: Path) -> None:
    found = modes(directory)
    assert found
    for path, mode in found.items():
        assert mode == ("0o700" if (directory / path).is_dir() else "0o600"), found


def test_every_file_of_the_python_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal.open(tmp_path / "store" / "journal")
        await journal.write([("t", "k", b"v")])
        await journal.close()
        values = KeyValues(tmp_path / "names" / "kvConfig.json")
        await values.put("n", "k", "v")
        await values.close()
        offsets = FileOffsets(tmp_path / "client" / "offsets" / "g.json")
        await offsets.commit({Queue("T", "b", 1): 1})
        await offsets.close()

    asyncio.run(scenario())
    metadata = MetadataFile(tmp_path / "pipeline" / "state" / "positions.json")
    metadata.write(b"1")
    metadata.write(b"2")
    HeldFile(tmp_path / "locks" / "deep" / "one.lock").close()
    store = LocalRetryStore(tmp_path / "parked" / "g.parked.sqlite")
    store.replay()
    check_private(tmp_path)
    store.close()


def test_a_replaced_file_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o644)
    replace_file(tmp_path / "old", b"new")
    (tmp_path / "left.tmp").write_text("of a crash")
    create_private(tmp_path / "left.tmp").close()
    check_private(tmp_path)


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    replace_file(tmp_path / "shared" / "mine" / "file", b"")
    assert modes(tmp_path) == {"shared": "0o750", "shared/mine": "0o700", "shared/mine/file": "0o600"}


def test_a_refused_access_says_whose_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    error = PermissionError(13, "Permission denied")
    assert "theirs belongs to " in whose(tmp_path / "theirs" / "file", error)
    assert ": run it as " in whose(tmp_path / "theirs" / "file", error)
    assert whose(tmp_path, FileNotFoundError()) == ""


@pytest.mark.parametrize("exists", [True, False], ids=["file", "dangling"])
def test_planted_links_are_not_followed(tmp_path: Path, exists: bool) -> None:
    victim = tmp_path / "victim"
    if exists:
        victim.write_bytes(b"precious")
    for name in ("lock", "state.tmp"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        HeldFile(tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic link"):
        replace_file(tmp_path / "state", b"new")
    with pytest.raises(OSError, match="symbolic link"):
        os.close(open_private(tmp_path / "lock"))
    assert (victim.read_bytes() == b"precious") if exists else not victim.exists()
