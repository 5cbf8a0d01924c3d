"""`metaq console`: the console of any cluster, in the foreground."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from metaq.config.derive import outward_address, resolve_host
from metaq.config.kinds import join_endpoint, split_endpoint
from metaq.console.access.passwords import PASSWORD_LENGTH_MAX, PASSWORD_LENGTH_MIN, PasswordDirectory
from metaq.console.access.roles import Role
from metaq.console.listener import address_of_socket, bind
from metaq.console.place import Announcement, Place, default_folder
from metaq.console.run import run_console
from metaq.console.settings import ConsoleSettings
from metaq.console.web_server import TlsFiles
from metaq.credentials import Credentials
from metaq.errors import CommandError, ConfigError

DEFAULT_LISTEN: Final = "127.0.0.1:8080"
_BASE_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._:-]+")


@dataclass(frozen=True, slots=True)
class ConsoleFlags:
    """The flags of `metaq console`, as they were written."""

    nameservers: str
    credentials: Credentials | None = None
    cluster_label: str | None = None
    listen: str | None = None
    operator_password_file: str | None = None
    viewer_password_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    is_insecure: bool = False
    public_url: str | None = None
    base_path: str = ""
    host_names: tuple[str, ...] = ()
    state: str | None = None
    poll_interval_s: float = 10.0


async def serve_console(flags: ConsoleFlags, announce: Callable[[Announcement], None]) -> None:
    """Serves until SIGINT or SIGTERM; a second signal ends the process at once. Raises ConfigError and
    CommandError."""
    passwords, tls = read_passwords(flags), read_tls(flags)
    host, port = _listen(flags)
    check_safety(flags, host, port, passwords, tls)
    settings = console_settings(flags, host, tls)
    # Everything that this process writes is its own.
    os.umask(0o077)
    place = Place.claim(settings.state_folder)
    # Before the announcement: whoever reads it may stop the process at once, and must not leave links behind.
    stop = _stop_on_signal()
    try:
        listener = _bind(host, port, may_move=flags.listen is None)
        name = _link_host(flags, host)
        local = address_of_socket(listener, host=name, is_tls=tls is not None, base_path=settings.base_path)
        announce(place.announce(f"{settings.public_url}/" if settings.public_url else local))
        directory = PasswordDirectory(passwords) if passwords else None
        await run_console(settings, listener, stop, directory=directory, tls=tls)
    except OSError as error:
        raise CommandError(f"the console cannot run: {error.strerror or error}") from None
    finally:
        place.leave()


def console_settings(flags: ConsoleFlags, host: str, tls: TlsFiles | None) -> ConsoleSettings:
    """Returns the settings that follow from the flags. Raises ConfigError."""
    public = _public_url(flags)
    for name in flags.host_names:
        if not _HOST_NAME.fullmatch(name):
            raise ConfigError(
                f"--host-name {name} is not a host name", hint="write only the name, such as mq.example.com"
            )
    named = (*flags.host_names, *((public.host,) if public else ()))
    own = {socket.gethostname().lower(), _link_host(flags, host).lower(), host}
    return ConsoleSettings(
        nameservers=flags.nameservers,
        state_folder=Path(flags.state).expanduser().absolute() if flags.state else default_folder(),
        public_url=public.text if public else "",
        base_path=public.path if public else _base_path(flags),
        hosts=frozenset(name.lower() for name in (*named, *(own if _is_open(host) else ()))),
        credentials=flags.credentials,
        poll_interval_s=flags.poll_interval_s,
        secure_cookies=public.is_tls if public else tls is not None,
        is_beyond_loopback=_is_open(host),
        cluster_label=flags.cluster_label,
    )


@dataclass(frozen=True, slots=True)
class _PublicUrl:
    """The address at which browsers reach the console through a proxy."""

    text: str
    """Without a slash at the end."""
    host: str
    path: str
    is_tls: bool


def _public_url(flags: ConsoleFlags) -> _PublicUrl | None:
    """Returns the address in --public-url. Raises ConfigError."""
    if flags.public_url is None:
        return None
    try:
        url = urlsplit(flags.public_url)
        # Raises ValueError for a port that is none.
        host, _ = url.hostname or "", url.port
    except ValueError:
        url, host = urlsplit(""), ""
    path = url.path.rstrip("/")
    is_plain = not url.query and not url.fragment and "@" not in url.netloc
    if not (url.scheme in ("https", "http") and _HOST_NAME.fullmatch(host) and is_plain):
        raise ConfigError(
            f"--public-url {flags.public_url} is not the address of a console",
            hint="write it like https://tools.example.com/metaq",
        )
    _check_path("--public-url", path)
    if flags.base_path and _base_path(flags) != path:
        raise ConfigError(
            f"--public-url {flags.public_url} and --base-path {flags.base_path} name two paths",
            hint="leave --base-path out; it follows from --public-url",
        )
    return _PublicUrl(f"{url.scheme}://{url.netloc}{path}", host, path, url.scheme == "https")


def _base_path(flags: ConsoleFlags) -> str:
    path = flags.base_path.rstrip("/")
    _check_path("--base-path", path, flags.base_path)
    return path


def _check_path(flag: str, path: str, written: str = "") -> None:
    if not _BASE_PATH.fullmatch(path):
        raise ConfigError(
            f"{flag} {written or path} is not a path",
            hint="write it like /metaq, with letters, digits and any of . _ ~ -",
        )


def check_safety(
    flags: ConsoleFlags, host: str, port: int, passwords: dict[Role, str], tls: TlsFiles | None
) -> None:
    """Raises ConfigError if other machines could connect without a password or without TLS."""
    if not _is_open(host) or flags.is_insecure or (passwords and tls is not None):
        return
    missing = []
    if not passwords:
        missing.append("--operator-password-file (or --viewer-password-file)")
    if tls is None:
        missing.append("--tls-cert and --tls-key")
    raise ConfigError(
        f"{join_endpoint(host, port)} is open to other machines, which needs a password and TLS",
        hint=f"add {', '.join(missing)}; or use --insecure if you trust the network",
    )


def read_passwords(flags: ConsoleFlags) -> dict[Role, str]:
    """Returns the passwords in the files of the flags. Raises ConfigError."""
    files = {
        Role.operator: ("--operator-password-file", flags.operator_password_file),
        Role.viewer: ("--viewer-password-file", flags.viewer_password_file),
    }
    passwords = {}
    for role, (flag, file) in files.items():
        if file is None:
            continue
        try:
            password = Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{flag} {file} cannot be read: {reason}") from None
        if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX or "\n" in password:
            raise ConfigError(
                f"{flag} {file} must have one line of {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} "
                "characters",
                hint=f"`openssl rand -base64 18 > {file}` makes a good one",
            )
        passwords[role] = password
    return passwords


def read_tls(flags: ConsoleFlags) -> TlsFiles | None:
    """Returns the files of TLS after a look into them. Raises ConfigError."""
    if flags.tls_certificate is None and flags.tls_key is None:
        return None
    if flags.tls_certificate is None or flags.tls_key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    files = TlsFiles(flags.tls_certificate, flags.tls_key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, _no_password)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"--tls-cert {files.certificate} and --tls-key {files.key} cannot be used: {reason}",
            hint="both must be PEM files that belong together; the key must have no password",
        ) from None
    return files


def _no_password() -> str:
    raise ValueError("the key has a password")


def _listen(flags: ConsoleFlags) -> tuple[str, int]:
    text = flags.listen or DEFAULT_LISTEN
    try:
        host, port = split_endpoint(f":{text}" if text.isdecimal() else text)
    except ValueError as error:
        raise ConfigError(f"--listen {text} {error}") from None
    return resolve_host(host or "127.0.0.1"), port


def _bind(host: str, port: int, *, may_move: bool) -> socket.socket:
    try:
        return bind(host, port, may_move=may_move)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        raise CommandError(
            f"cannot listen on {join_endpoint(host, port)}: {error.strerror or error}",
            hint="choose another port with --listen; 0 takes a free one" if is_taken else "",
        ) from None


def _is_open(host: str) -> bool:
    return not ipaddress.ip_address(host).is_loopback


def _link_host(flags: ConsoleFlags, host: str) -> str:
    """Returns the host for links: a name that was given, or an address that others can reach."""
    if _is_open(host) and flags.host_names:
        return flags.host_names[0]
    return outward_address() if ipaddress.ip_address(host).is_unspecified else host


def _stop_on_signal() -> asyncio.Event:
    """An event that the first signal sets; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def ask() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, ask)
    return stop
