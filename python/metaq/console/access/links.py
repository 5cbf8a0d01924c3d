"""One-time links. A file for each link has the hash of its token, so that another process can make one.

    links/ID.json  {"hash": "…", "role": "operator", "made_ms": …, "expires_ms": null}

A token is `ID.SECRET`. Whoever removes the file has spent the token: of two requests only one succeeds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from metaq.console.access.roles import Role
from metaq.durable import replace_file, sync_directory
from metaq.private_files import make_private_directory

EXPIRY_S: Final = 3600.0
LINKS_MAX: Final = 100
"""When one more is made, the oldest goes."""
_TOKEN: Final = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_FILE_BYTES_MAX: Final = 4096


class _Link(msgspec.Struct, frozen=True):
    hash: str
    role: Role
    made_ms: int
    expires_ms: int | None


class Links:
    """The links of one console that nobody has used yet."""

    def __init__(self, state_folder: Path) -> None:
        self._folder = state_folder / "links"

    def create(self, role: Role, *, expires_after_s: float | None = EXPIRY_S) -> str:
        """Makes a link and returns its token; with None it stays valid until it is used. Raises OSError."""
        make_private_directory(self._folder)
        self._make_room()
        name, secret, now = secrets.token_hex(8), secrets.token_urlsafe(32), _now_ms()
        expires_ms = None if expires_after_s is None else now + int(expires_after_s * 1000)
        link = _Link(_hashed(secret), role, now, expires_ms)
        replace_file(self._folder / f"{name}.json", msgspec.json.encode(link))
        return f"{name}.{secret}"

    def spend(self, token: str) -> Role | None:
        """Uses up a token and returns its role; None if it is unknown, used or too old."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return None
        path = self._folder / f"{found[1]}.json"
        link = _read(path)
        if link is None or not hmac.compare_digest(link.hash, _hashed(found[2])):
            return None
        try:
            path.unlink()
        except FileNotFoundError:
            return None
        sync_directory(self._folder)
        return None if _is_over(link) else link.role

    def clear(self) -> None:
        """Forgets all links, such as those that an earlier start has printed."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _make_room(self) -> None:
        kept = []
        for path in self._files():
            link = _read(path)
            if link is None or _is_over(link):
                path.unlink(missing_ok=True)
            else:
                kept.append((link.made_ms, path))
        for _, path in sorted(kept)[: max(len(kept) - LINKS_MAX + 1, 0)]:
            path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        return self._folder.glob("*.json") if self._folder.is_dir() else iter(())


def _read(path: Path) -> _Link | None:
    """Returns None for a file that is gone, or that nobody can read as a link."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=_Link)
    except (OSError, msgspec.DecodeError):
        return None


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _is_over(link: _Link) -> bool:
    return link.expires_ms is not None and link.expires_ms <= _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
