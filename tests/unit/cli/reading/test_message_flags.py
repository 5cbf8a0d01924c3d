"""Durations that a person may write."""

from __future__ import annotations

from datetime import timedelta

import pytest

from metaq.cli.reading.message_flags import duration_of
from metaq.errors import CommandError


def test_durations() -> None:
    for text, seconds in (
        ("500ms", 0.5),
        ("10s", 10),
        ("1.5", 1.5),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
    ):
        assert duration_of("--delay", text) == timedelta(seconds=seconds)
    for text in ("", "soon", "-1s", "1w", "999999999999d"):
        with pytest.raises(CommandError, match=r"--delay: .* is not a duration"):
            duration_of("--delay", text)
