"""Files that commands write for their user."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.admin import Timeline
from metaq.cli.commands.trace import _write_spans
from metaq.cli.work import replaced_file as module
from metaq.cli.work.replaced_file import replaced_file


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine")
    link.symlink_to(target)
    with replaced_file(link) as file:
        file.write(b"new")
    assert (target.read_text(), link.read_text()) == ("mine", "new")
    assert not link.is_symlink() and stat.S_IMODE(link.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_spans_do_not_follow_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine")
    link.symlink_to(target)
    _write_spans(Timeline("x", "t", None, (), None, None, None, (), (), ()), link)
    assert target.read_text() == "mine" and "resourceSpans" in link.read_text()


@pytest.mark.parametrize("is_named", [False, True])
def test_a_failure_leaves_the_older_file(
    tmp_path: Path, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_named:
        monkeypatch.setattr(module, "DESCRIPTORS", tmp_path / "none")
    path = tmp_path / "export"
    for word in (b"old", b"new"):
        with replaced_file(path) as file:
            file.write(word)
    assert path.read_bytes() == b"new"
    with pytest.raises(RuntimeError), replaced_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_command_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from metaq.cli.work.replaced_file import replaced_file;"
        "file = replaced_file(Path(sys.argv[1])).__enter__(); file.write(bytes(100_000)); file.flush();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "export")], timeout=60)
    assert not list(tmp_path.iterdir())


def test_folders_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replaced_file(tmp_path):
        pass
    with pytest.raises(OSError, match="it is not a file"), replaced_file(Path("/dev/null")):
        pass
