"""The settings of a console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metaq.credentials import Credentials


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings that one console runs with."""

    nameservers: str
    state_folder: Path
    """Has the sessions, the links and the audit log. Only its owner may read it."""
    base_path: str = ""
    """The path under which a proxy serves the console, such as `/metaq`; empty if it has the whole host."""
    public_url: str = ""
    """The address in links, such as `https://tools.example.com/metaq`; empty if it is that of the request."""
    hosts: frozenset[str] = frozenset()
    """Host names that requests may name, beside the loopback names."""
    credentials: Credentials | None = None
    poll_interval_s: float = 10.0
    secure_cookies: bool = False
    """Browsers send the cookies only over TLS."""
    is_beyond_loopback: bool = False
    cluster_label: str | None = None
    """A name for people; the name of the cluster if it is None."""
    history_series_max: int = 20_000
    sessions_max: int = 200
    """When one more person signs in, the oldest session ends."""
    session_age_s_max: float = 7 * 86_400.0
