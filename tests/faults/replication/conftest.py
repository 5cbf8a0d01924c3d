"""Chooses the trials: `make test` runs a few minutes of them, `make soak ARGS="--faults"` all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rounds import LONG, LONG_TIMEOUT_S


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items_here = [item for item in items if Path(__file__).parent in item.path.parents]
    if LONG:
        for item in items_here:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S), append=False)
        return
    left_out = [item for item in items_here if item.get_closest_marker("soak")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
