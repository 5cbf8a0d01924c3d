"""Links that sign somebody in are shown on a terminal. Redirected output and logs have none of them."""

from __future__ import annotations

import os
import pty
import select
import shlex
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.support.console_links import console_links
from tests.support.metaq import COMMAND, READY, Metaq, fields_of_ready_line, run
from tests.support.visitor import Visitor

TIMEOUT_S = 120.0
SERVE = ("serve", "--namesrv-port", "0", "--broker-port", "0", "--console", "--console-port", "0", "--data")
CONSOLE = ("console", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--state")
ROLES = pytest.mark.parametrize("arguments", [SERVE, CONSOLE], ids=["serve", "console"])


@contextmanager
def started(arguments: tuple[str, ...], log_format: str, **streams: int | IO[bytes]) -> Iterator[None]:
    """Runs a role while the block runs, and checks that it stops in order."""
    environment = {**os.environ, "METAQ_LOG_FORMAT": log_format}
    process = subprocess.Popen([*COMMAND, *arguments], stdin=subprocess.DEVNULL, env=environment, **streams)
    try:
        yield
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)


def ready_fields(file: Path) -> dict[str, str]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if fields := fields_of_ready_line(file.read_text()):
            return fields
        time.sleep(0.05)
    raise AssertionError(file.read_text())


def seen_on(terminal: int, words: bytes) -> str:
    """Returns what a terminal shows, up to the words."""
    seen, deadline = b"", time.monotonic() + TIMEOUT_S
    while words not in seen and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 65536)
    return seen.decode()


@ROLES
@pytest.mark.parametrize("log_format", ["auto", "text", "json"])
def test_redirected_output_has_no_token(tmp_path: Path, arguments: tuple[str, ...], log_format: str) -> None:
    folder, out, err = tmp_path / "a folder", tmp_path / "out", tmp_path / "err"
    with (
        out.open("wb") as stdout,
        err.open("wb") as stderr,
        started((*arguments, str(folder)), log_format, stdout=stdout, stderr=stderr),
    ):
        ready = ready_fields(out)
        file = Path(ready["console_links_file"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        links = console_links(ready)
        assert Visitor(ready["console"]).follow(links.operator).status == 200
        tokens = [link.partition("?token=")[2] for link in (links.operator, links.viewer)]
        command = shlex.join(("metaq", "console", "link", arguments[-1], str(folder)))
        assert f"run `{command}`" in err.read_text() and str(file) in err.read_text()
        made = run(*shlex.split(command)[1:])
        assert Visitor(ready["console"]).follow(made.stdout.strip()).status == 200
    assert not file.exists()
    for written in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = written.read_bytes()
        assert b"token=" not in content, written
        for token in tokens:
            assert token.encode() not in content, written
            assert token.partition(".")[2].encode() not in content, written


@ROLES
def test_a_terminal_shows_the_links(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    out = tmp_path / "out"
    with (
        out.open("wb") as stdout,
        started((*arguments, str(tmp_path / "state")), "auto", stdout=stdout, stderr=theirs),
    ):
        shown = seen_on(ours, b"Ctrl-C stops it.")
        ready = ready_fields(out)
        links = console_links(ready)
        assert links.operator in shown and links.viewer in shown
        # Standard output is a file, so it has no link.
        assert "token=" not in out.read_text()
    os.close(theirs)
    os.close(ours)


@ROLES
def test_a_log_has_no_link_although_the_ready_line_goes_to_a_terminal(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ours, theirs = pty.openpty()
    err = tmp_path / "err"
    with (
        err.open("wb") as stderr,
        started((*arguments, str(tmp_path / "state")), "text", stdout=theirs, stderr=stderr),
    ):
        shown = seen_on(ours, b"}")
        assert shown.startswith(READY) and "console_links_file" in shown
        assert "is ready" in err.read_text() and "token=" not in err.read_text()
    os.close(theirs)
    os.close(ours)


def test_a_killed_console_leaves_links_that_the_next_start_replaces(tmp_path: Path) -> None:
    first = Metaq.console(tmp_path, "127.0.0.1:1")
    old = console_links(first.ready)
    first.kill()
    second = Metaq.console(tmp_path, "127.0.0.1:1")
    try:
        new = console_links(second.ready)
        assert not {old.operator, old.viewer} & {new.operator, new.viewer}
        token = old.operator.partition("?")[2]
        assert Visitor(second.ready["console"]).get(f"/?{token}").status == 403
    finally:
        assert second.stop() == 0
    assert not Path(second.ready["console_links_file"]).exists()
