"""People who are signed in. A file has the hashes of their secrets, so that a restart signs nobody out.

The cookie is `ID.SECRET`. The CSRF token follows from the secret, so it is stored nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from metaq.console.access.roles import Identity, Role
from metaq.durable import replace_file

_log = logging.getLogger(__name__)

_COOKIE: Final = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")


class _Session(msgspec.Struct, frozen=True):
    id: str
    hash: str
    name: str
    role: Role
    began_ms: int


class _File(msgspec.Struct):
    console: str
    """Part of the cookie's name. Cookies of one host reach every port of it, so consoles must differ."""
    sessions: list[_Session]


class Sessions:
    """The sessions of one console, bounded in number and age."""

    def __init__(self, state_folder: Path, *, sessions_max: int, age_s_max: float) -> None:
        """Reads the sessions of an earlier process. Raises OSError if the file cannot be read."""
        self._path = state_folder / "sessions.json"
        self._sessions_max = sessions_max
        self._age_ms_max = int(age_s_max * 1000)
        # A lock for threads: a request that is cancelled leaves its thread at work.
        self._writing = threading.Lock()
        stored = self._read()
        self.console_id = stored.console
        self._sessions = {session.id: session for session in stored.sessions}

    def __len__(self) -> int:
        return len(self._sessions)

    async def create(self, name: str, role: Role) -> tuple[str, Identity]:
        """Signs somebody in. Returns the value of the cookie, and the identity."""
        session_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._drop_old()
        while len(self._sessions) >= self._sessions_max:
            del self._sessions[self._first_to_end()]
        session = _Session(session_id, _hashed(secret), name, role, _now_ms())
        self._sessions[session_id] = session
        await self._write()
        return f"{session_id}.{secret}", _identity(session, secret)

    def find(self, cookie: str) -> Identity | None:
        """Returns the identity behind a cookie, or None if there is no such session any more."""
        found = _COOKIE.fullmatch(cookie)
        session = self._sessions.get(found[1]) if found else None
        if found is None or session is None or not hmac.compare_digest(session.hash, _hashed(found[2])):
            return None
        return None if self._is_over(session) else _identity(session, found[2])

    def is_open(self, session_id: str) -> bool:
        session = self._sessions.get(session_id)
        return session is not None and not self._is_over(session)

    async def remove(self, session_id: str) -> None:
        """Signs somebody out."""
        if self._sessions.pop(session_id, None) is not None:
            await self._write()

    def _is_over(self, session: _Session) -> bool:
        return _now_ms() - session.began_ms >= self._age_ms_max

    def _first_to_end(self) -> str:
        """Returns the oldest session of a viewer, or else of anybody: many viewers must not sign an operator
        out."""
        # Sessions are in the order in which they began.
        viewers = (key for key, session in self._sessions.items() if session.role is Role.viewer)
        return next(viewers, None) or next(iter(self._sessions))

    def _drop_old(self) -> None:
        self._sessions = {key: one for key, one in self._sessions.items() if not self._is_over(one)}

    def _read(self) -> _File:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            pass
        except msgspec.DecodeError:
            _log.warning("%s is damaged: everybody must sign in again", self._path)
        return _File(secrets.token_hex(4), [])

    async def _write(self) -> None:
        def write() -> None:
            with self._writing:
                # The newest sessions, so that the last who writes leaves the whole truth.
                content = _File(self.console_id, list(self._sessions.values()))
                replace_file(self._path, msgspec.json.encode(content))

        await asyncio.to_thread(write)


def csrf_token(secret: str) -> str:
    """Returns the token that proves that a form came from a page of this session."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def _identity(session: _Session, secret: str) -> Identity:
    return Identity(session.name, session.role, session.id, csrf_token(secret))


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
