"""The Host and Origin headers that are accepted, and the addresses to which a browser is sent on.

A web page of somebody else can give its own name the address 127.0.0.1 and so ask the console from the
reader's browser. Its requests then carry that name in Host.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?", re.IGNORECASE)
"""A name, or an address of IPv6 in brackets, and a port."""
_PATH_LENGTH_MAX: Final = 2000


def is_known_host(host: str, hosts: frozenset[str]) -> bool:
    """Returns whether a Host header names loopback or one of our own names. The port does not count."""
    name = _name(host)
    return bool(name) and (name in hosts or name == "localhost" or _is_loopback(name))


def is_own_request(*, origin: str, fetch_site: str, host: str, hosts: frozenset[str]) -> bool:
    """Returns whether a change comes from a page of this console, as far as its headers say.

    Without both headers it may: programs and old browsers send none, and the CSRF token decides. `null` is
    the origin of forms on pages with `Referrer-Policy: no-referrer`, such as ours.
    """
    if fetch_site and fetch_site not in ("same-origin", "none"):
        return False
    if not origin or origin == "null":
        return True
    place = origin.partition("://")[2].lower()
    # A proxy may put another name into Host, so a name of ours is right as well.
    return place == host.lower() or _name(place) in hosts


def own_path(path: str) -> str:
    """Returns a path of this host, which somebody else may have chosen: `/` in place of any other address,
    such as `//host` or `/\\host`."""
    is_own = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and path.isascii()
        and len(path) <= _PATH_LENGTH_MAX
    )
    return path if is_own else "/"


def _name(host: str) -> str:
    """Returns the name without the port, in lower case; empty for a malformed header."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
