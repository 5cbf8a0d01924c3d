"""The state folder of a console that runs: its lock, its address for `metaq console link`, and the links of
its start.

    console.json        {"address": "http://127.0.0.1:8080/"}
    sign-in-links.json  {"operator": "http://127.0.0.1:8080/?token=…", "viewer": "…"}, while the console runs
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from metaq.console.access.links import EXPIRY_S, Links
from metaq.console.access.roles import Role
from metaq.durable import replace_file
from metaq.errors import CommandError
from metaq.held_file import HeldFile
from metaq.private_files import make_private_directory, whose

_LOCK: Final = "lock"
_ADDRESS: Final = "console.json"
_FIRST_LINKS: Final = "sign-in-links.json"


class _Running(msgspec.Struct, frozen=True):
    address: str


class FirstLinks(msgspec.Struct, frozen=True):
    """The content of the file with the links for the first two visitors."""

    operator: str
    viewer: str


@dataclass(frozen=True, slots=True)
class Announcement:
    """The address of a console, and the links for its first two visitors."""

    address: str
    links: FirstLinks
    """Whoever has one of them can sign in, so they are shown only on a terminal."""
    links_file: Path
    """Has the links for programs. Only the owner of the folder may read it."""


class Place:
    """The claim of one process on a state folder."""

    def __init__(self, folder: Path, lock: HeldFile) -> None:
        self.folder = folder
        self._lock = lock
        self._is_held = True

    @classmethod
    def claim(cls, folder: Path, *, flag: str = "--state") -> Self:
        """Makes the folder, which the flag chooses, and locks it. Raises CommandError."""
        try:
            make_private_directory(folder)
            _check_owner(folder, flag)
            return cls(folder, HeldFile(folder / _LOCK))
        except BlockingIOError:
            raise CommandError(
                f"another console uses {folder}", hint=f"stop it, or choose another folder with {flag}"
            ) from None
        except OSError as error:
            raise CommandError(
                f"{folder} cannot be used for the console: {error.strerror or error}",
                hint=whose(folder, error) or f"choose another folder with {flag}",
            ) from None

    def announce(self, address: str) -> Announcement:
        """Notes the address, forgets the links of earlier starts and makes two that wait to be used.

        Programs find them in a file. A start that dies before it has replaced the file of an earlier one
        leaves links there that no longer work.
        """
        replace_file(self.folder / _ADDRESS, msgspec.json.encode(_Running(address)))
        links = Links(self.folder)
        links.clear()
        operator, viewer = (links.create(role, expires_after_s=None) for role in (Role.operator, Role.viewer))
        first = FirstLinks(link_with(address, operator), link_with(address, viewer))
        file = self.folder / _FIRST_LINKS
        replace_file(file, msgspec.json.encode(first) + b"\n")
        return Announcement(address, first, file)

    def leave(self) -> None:
        """Gives the folder up. Safe to call twice."""
        if not self._is_held:
            # The file may belong to the next console by now.
            return
        self._is_held = False
        # If it cannot be removed, the next start replaces it.
        with contextlib.suppress(OSError):
            (self.folder / _FIRST_LINKS).unlink(missing_ok=True)
        self._lock.close()


def _check_owner(folder: Path, flag: str) -> None:
    """Raises CommandError if another account can change the folder: it could put links of its own there."""
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise CommandError(
            f"{folder} belongs to another account, so it cannot be used for the console",
            hint=f"choose another folder with {flag}, or run the console as the owner of this one",
        )
    if status.st_mode & 0o022:
        raise CommandError(
            f"other accounts may write to {folder}, so it cannot be used for the console",
            hint=f"run `chmod go-w {shlex.quote(str(folder))}` if you know all its files, "
            f"or choose another folder with {flag}",
        )


def new_link(folder: Path, role: Role) -> str:
    """Makes a link for the console that runs with this folder. Raises CommandError if none runs."""
    address = running_address(folder)
    if address is None:
        raise CommandError(
            f"no console runs with {folder}",
            hint="start one with `metaq serve` or `metaq console`, or name its folder with --data or --state",
        )
    if folder.stat().st_uid != os.geteuid():
        # The console could not read a file of another account, not even one of root.
        raise CommandError(
            "this account cannot make links for the console", hint=whose(folder, PermissionError())
        )
    return link_with(address, Links(folder).create(role, expires_after_s=EXPIRY_S))


def running_address(folder: Path) -> str | None:
    """Returns the address of the console that runs with this folder; None if none does. Raises CommandError
    if the folder belongs to another account."""
    try:
        if not (folder / _LOCK).exists():
            return None
        HeldFile(folder / _LOCK).close()
    except BlockingIOError:
        pass
    except OSError as error:
        raise CommandError(f"cannot look into {folder}", hint=whose(folder, error)) from None
    else:
        return None
    try:
        return msgspec.json.decode((folder / _ADDRESS).read_bytes(), type=_Running).address
    except (OSError, msgspec.DecodeError):
        return None


def link_with(address: str, token: str) -> str:
    return f"{address}?token={token}"


def default_folder() -> Path:
    """Returns the state folder of `metaq console`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "metaq" / "console"
