"""Fixtures for every test that needs running MetaQ processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from metaq.config.options import OPTIONS
from tests.support.metaq import Metaq

# Settings of whoever runs the tests would change what the processes under test do.
for variable in ("METAQ_CONFIG", *(option.variable for option in OPTIONS.values())):
    os.environ.pop(variable, None)

# A shell that runs the tests in the background has SIGINT ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests say nothing about how fast the machine is, or how busy.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture
def start_metaq(tmp_path: Path) -> Iterator[Callable[..., Metaq]]:
    """Starts a role with the given arguments; whatever is still running is stopped at the end."""
    running: list[Metaq] = []

    def start(*arguments: str) -> Metaq:
        started = Metaq(*arguments, home=tmp_path)
        running.append(started)
        return started

    yield start
    for started in reversed(running):
        if started.child.alive:
            started.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    """`metaq serve` on free ports, shared by the tests of a module."""
    started = Metaq.serve(tmp_path_factory.mktemp("served"))
    yield started
    assert started.stop() == 0
