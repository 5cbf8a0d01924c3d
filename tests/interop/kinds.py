"""Which Java clients a scenario runs with: releases of the client times header encodings."""

from __future__ import annotations

import pytest

JAVA_CLIENTS = [("5.5.0", "json"), ("5.5.0", "binary"), ("4.9.8", "json"), ("4.9.8", "binary")]


def java_id(kind: tuple[str, str]) -> str:
    return "-".join(kind)


# For scenarios that lose servers or processes and take seconds: each release and each encoding once.
each_once = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json"), ("4.9.8", "binary")], ids=java_id, indirect=True, scope="session"
)

# For what does not depend on the release and the encoding, or needs the newest.
newest_once = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json")], ids=java_id, indirect=True, scope="session"
)


def gives_up_lost_pulls(java_kind: tuple[str, str]) -> bool:
    """A 4.x consumer whose broker dies while it holds a pull waits 30 s before it asks again."""
    return not java_kind[0].startswith("4.")
