"""Attributes of topics and groups, as flags give them."""

from __future__ import annotations

from collections.abc import Sequence

from metaq.errors import CommandError


def given_attributes(texts: Sequence[str] | None) -> dict[str, str]:
    """Reads `NAME=VALUE`. Raises CommandError."""
    found: dict[str, str] = {}
    for name, value in changed_attributes(texts).items():
        if value is None:
            raise CommandError(f"--attribute {name}= has no value", hint="write it as NAME=VALUE")
        found[name] = value
    return found


def changed_attributes(texts: Sequence[str] | None) -> dict[str, str | None]:
    """Reads `NAME=VALUE`, or `NAME=` to remove an attribute, which is None. Raises CommandError."""
    found: dict[str, str | None] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CommandError(f'--attribute: "{text}" is not an attribute', hint="write it as NAME=VALUE")
        found[name] = value or None
    return found
