"""Notifications to systemd, over real datagram sockets."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import pytest

from metaq.systemd import READY, notify


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_lines_arrive_in_one_datagram(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(tmp_path / "notify") if kind == "path" else f"@metaq-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(10)
        listener.bind(name.replace("@", "\0", 1) if kind == "abstract" else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify(READY, "STATUS=serves")
        assert listener.recv(1024) == b"READY=1\nSTATUS=serves"


def test_without_a_supervisor_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify(READY)


def test_a_supervisor_that_is_gone_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    assert not notify(READY)
    assert "cannot be reached" in caplog.text
