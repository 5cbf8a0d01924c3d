"""The cookies that the console reads: its own, as it writes them.

Cookies of one host reach every port of it, so a browser may bring any others along. Python before 3.11.10
needs seconds for one of 32 KiB that is full of escaped quotes (CVE-2024-7592).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_OWN: Final = (b"metaq-", b"__Secure-metaq-")


def with_own_cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a request without cookies of others, and without escapes in our own."""
    return [(name, _own(value) if name == b"cookie" else value) for name, value in headers]


def _own(cookies: bytes) -> bytes:
    parts = (part.strip() for part in cookies.split(b";"))
    return b"; ".join(part for part in parts if part.startswith(_OWN) and b"\\" not in part)
