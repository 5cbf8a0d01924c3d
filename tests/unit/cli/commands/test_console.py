"""Flags of `metaq console`: what it refuses, and the settings that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.console.foreground import ConsoleFlags, check_safety, console_settings
from metaq.console.web_server import TlsFiles
from metaq.errors import ConfigError
from tests.support.invoking import CommandLine


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            ("--listen", "0.0.0.0:0"),
            "0.0.0.0:0 is open to other machines, which needs a password and TLS",
            "add --operator-password-file (or --viewer-password-file), --tls-cert and --tls-key; "
            "or use --insecure if you trust the network",
        ),
        (
            ("--listen", "0.0.0.0:0", "--operator-password-file", "{password}"),
            "0.0.0.0:0 is open to other machines, which needs a password and TLS",
            "add --tls-cert and --tls-key; or use --insecure if you trust the network",
        ),
        (("--tls-cert", "{password}"), "TLS needs both --tls-cert and --tls-key", ""),
        (
            ("--tls-cert", "{password}", "--tls-key", "{password}"),
            "--tls-cert {password} and --tls-key {password} cannot be used: ",
            "both must be PEM files that belong together; the key must have no password",
        ),
        (
            ("--viewer-password-file", "{missing}"),
            "--viewer-password-file {missing} cannot be read: No such file or directory",
            "",
        ),
        (
            ("--viewer-password-file", "{short}"),
            "--viewer-password-file {short} must have one line of 12 to 1024 characters",
            "`openssl rand -base64 18 > {short}` makes a good one",
        ),
        (("--base-path", "metaq"), "--base-path metaq is not a path", "write it like /metaq, "),
        (("--host-name", "http://x"), "--host-name http://x is not a host name", "write only the name, "),
        (("--listen", "nowhere"), "--listen nowhere ", ""),
        (("--state", "x", "link"), "--state is a flag of `metaq console` itself, not of ", "write it after "),
        (("link", "--state", "x", "--data", "y"), "--state and --data name two folders", "use one of them"),
    ],
)
def test_mistakes(tmp_path: Path, flags: tuple[str, ...], message: str, hint: str) -> None:
    files = {name: str(tmp_path / name) for name in ("password", "short", "missing")}
    Path(files["password"]).write_text("open sesame!\n")
    Path(files["short"]).write_text("short\n")
    error = CommandLine("127.0.0.1:1").refused("console", *(flag.format_map(files) for flag in flags))
    assert isinstance(error, ConfigError)
    assert str(error).startswith(message.format_map(files))
    assert error.hint.startswith(hint.format_map(files))


def test_loopback_needs_neither_password_nor_tls() -> None:
    flags = ConsoleFlags("127.0.0.1:9876")
    check_safety(flags, "127.0.0.1", 8080, {}, None)
    settings = console_settings(flags, "127.0.0.1", None)
    assert (settings.hosts, settings.is_beyond_loopback, settings.secure_cookies) == (
        frozenset(),
        False,
        False,
    )


def test_insecure_waives_both() -> None:
    flags = ConsoleFlags("127.0.0.1:9876", is_insecure=True, host_names=("MQ.example.com",), base_path="/mq/")
    check_safety(flags, "0.0.0.0", 8080, {}, None)
    settings = console_settings(flags, "0.0.0.0", TlsFiles("c", "k"))
    assert "mq.example.com" in settings.hosts
    assert (settings.base_path, settings.is_beyond_loopback, settings.secure_cookies) == ("/mq", True, True)
