"""Everything that decides about access, as one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from metaq.console.access.links import Links
from metaq.console.access.passwords import SignInBrake
from metaq.console.access.roles import Directory
from metaq.console.access.sessions import Sessions
from metaq.console.audit_log import AuditLog
from metaq.console.settings import ConsoleSettings
from metaq.private_files import make_private_directory


@dataclass(frozen=True, slots=True)
class Access:
    """The access to one console. Pages and the middleware share it."""

    settings: ConsoleSettings
    links: Links
    sessions: Sessions
    directory: Directory | None
    """None if nobody can sign in by password."""
    brake: SignInBrake
    audit: AuditLog

    @classmethod
    def open(cls, settings: ConsoleSettings, directory: Directory | None = None) -> Self:
        """Opens the files in the state folder. Raises OSError."""
        make_private_directory(settings.state_folder)
        sessions = Sessions(
            settings.state_folder,
            sessions_max=settings.sessions_max,
            age_s_max=settings.session_age_s_max,
        )
        return cls(
            settings,
            Links(settings.state_folder),
            sessions,
            directory,
            SignInBrake(),
            AuditLog(settings.state_folder),
        )

    @property
    def cookie_name(self) -> str:
        prefix = "__Secure-" if self.settings.secure_cookies else ""
        return f"{prefix}metaq-{self.sessions.console_id}"

    @property
    def cookie_path(self) -> str:
        return f"{self.settings.base_path}/"
