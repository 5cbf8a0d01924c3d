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
        *(
            (("--public-url", url), f"--public-url {url} is not the address of a console", "write it like ")
            for url in (
                *("tools.example.com", "ftp://x", "https://", "https://x:y", "https://x?a=b", "https://x/#a"),
                *("https://user@x", "https://[x/", "https://a b/"),
            )
        ),
        (("--public-url", "https://x/a b"), "--public-url /a b is not a path", "write it like /metaq, "),
        (
            ("--public-url", "https://x/metaq", "--base-path", "/mq"),
            "--public-url https://x/metaq and --base-path /mq name two paths",
            "leave --base-path out",
        ),
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


def test_a_public_url_sets_links_cookies_host_name_and_path() -> None:
    url = "https://Tools.example.com:8443/metaq/"
    settings = console_settings(
        ConsoleFlags("127.0.0.1:9876", public_url=url, base_path="/metaq"), "127.0.0.1", None
    )
    assert settings.public_url == "https://Tools.example.com:8443/metaq"
    assert (settings.base_path, settings.hosts) == ("/metaq", frozenset({"tools.example.com"}))
    assert settings.secure_cookies
    plain = console_settings(
        ConsoleFlags("127.0.0.1:9876", public_url="http://[fd00::1]"), "127.0.0.1", TlsFiles("c", "k")
    )
    assert (plain.base_path, plain.hosts) == ("", frozenset({"fd00::1"}))
    # Browsers would not send such cookies to an address without TLS.
    assert not plain.secure_cookies
