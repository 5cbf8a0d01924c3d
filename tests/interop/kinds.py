"""The Java clients that a scenario runs with: each release with each header encoding."""

from __future__ import annotations

import pytest

JAVA_CLIENTS = [("5.5.0", "json"), ("5.5.0", "binary"), ("4.9.8", "json"), ("4.9.8", "binary")]


def java_id(kind: tuple[str, str]) -> str:
    return "-".join(kind)


# For scenarios that kill something and take seconds: each release and each encoding once.
each_once = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json"), ("4.9.8", "binary")], ids=java_id, indirect=True, scope="session"
)

# For scenarios that need the newest client, or do not depend on it.
newest_once = pytest.mark.parametrize(
    "java_kind", [("5.5.0", "json")], ids=java_id, indirect=True, scope="session"
)


def gives_up_lost_pulls(java_kind: tuple[str, str]) -> bool:
    """Returns whether the consumer asks again at once if its broker dies during a pull; 4.x waits 30 s."""
    return not java_kind[0].startswith("4.")
