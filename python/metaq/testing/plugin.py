"""pytest fixtures, which pytest finds on its own if MetaQ is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from metaq.testing.local import LocalMetaq


@pytest.fixture
def metaq_server() -> Iterator[LocalMetaq]:
    """MetaQ for one test: name server and broker in this process, an empty store, a movable clock."""
    from metaq.testing.local import LocalMetaq

    with LocalMetaq() as server:
        yield server


@pytest.fixture(scope="session")
def metaq_session_server() -> Iterator[LocalMetaq]:
    """One MetaQ for all tests, which share its topics and its clock."""
    from metaq.testing.local import LocalMetaq

    with LocalMetaq() as server:
        yield server
