"""Gives the trials the time that they take in `make soak ARGS="--faults"`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rounds import LONG, LONG_TIMEOUT_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LONG and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S), append=False)
