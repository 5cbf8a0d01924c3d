"""Hints for errors of the database: what to check, by the number of the error."""

from __future__ import annotations

from typing import Final

NOT_ALLOWED: Final = frozenset((1044, 1142, 1143, 1227, 1370))
"""The user is known but lacks a right."""
NO_LOGIN: Final = frozenset((1045, 1698))
"""The user is unknown, its password is wrong, or it may not log in from this host."""
_NO_HOST: Final = 1130
_NO_DATABASE: Final = 1049
_LOCKED: Final = frozenset((1820, 1862, 3118, 4151))
"""The password has expired, or the account is locked."""
_UNREACHABLE: Final = frozenset((2002, 2003, 2005))
_TLS: Final = ("SSL", "certificate")


def hint_for(code: int, text: str, *, user: str, rights: str, is_socket: bool) -> str:
    """Returns the hint for an error; empty if there is nothing to advise."""
    if code in NOT_ALLOWED:
        return f"GRANT {rights} ON *.* TO '{user}'@'…'"
    if code in NO_LOGIN:
        return (
            f"check source.user and the password that password_env or password_file names: the server does"
            f" not know '{user}' from this host, or the password is wrong"
        )
    if code == _NO_HOST:
        return f"the server accepts no user from this host: CREATE USER '{user}'@'…'"
    if code in _LOCKED:
        return f"the password of '{user}' has expired or the account is locked: ALTER USER '{user}'@'…'"
    if code == _NO_DATABASE:
        return "check the names of databases in source.tables"
    if code in _UNREACHABLE:
        if any(word in text for word in _TLS):
            return "check source.tls_ca: the server's certificate must be signed by one of its certificates"
        where = "source.socket" if is_socket else "source.host and source.port"
        return f"check {where}: is the server running, and does it accept connections from this host?"
    return ""
