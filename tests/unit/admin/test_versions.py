"""RocketMQ's version numbers, checked with known versions."""

from __future__ import annotations

import pytest

from metaq.admin.versions import described_version, is_before, version_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (213, "4.0.0"),
        (232, "4.1.0-SNAPSHOT"),
        (233, "4.1.0"),
        (401, "4.9.4"),
        (409, "4.9.8"),
        (413, "5.0.0"),
        (475, "5.3.1"),
        (513, "5.5.0"),
        (121, "before 4.0 (121)"),
    ],
)
def test_numbers(number: int, text: str) -> None:
    assert version_text(number) == text


def test_descriptions() -> None:
    assert described_version("V5_5_0") == "5.5.0"
    assert described_version("V5_0_0_SNAPSHOT") == "5.0.0-SNAPSHOT"
    assert described_version("") is None
    assert is_before("4.9.8", 5)
    assert not is_before("5.0.0-SNAPSHOT", 5)
