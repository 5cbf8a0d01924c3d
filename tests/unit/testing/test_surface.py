"""The public names of `metaq.testing`, and what its plugin loads in every pytest run."""

from __future__ import annotations

import subprocess
import sys

import pytest

import metaq.testing


def run(code: str) -> None:
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_the_names() -> None:
    assert metaq.testing.__all__ == [
        "AsyncLocalClock",
        "AsyncLocalMetaq",
        "LocalClock",
        "LocalMetaq",
        "StoredMessage",
    ]
    for name in metaq.testing.__all__:
        assert getattr(metaq.testing, name).__name__ == name
    assert set(metaq.testing.__all__) <= set(dir(metaq.testing))
    with pytest.raises(AttributeError, match="TestMetaq"):
        _ = metaq.testing.TestMetaq  # type: ignore[attr-defined]


def test_pytest_collects_none_of_them() -> None:
    assert not [name for name in metaq.testing.__all__ if name.startswith("Test")]


def test_the_plugin_loads_no_broker() -> None:
    run(
        "import sys, metaq.testing.plugin\n"
        "heavy = ('metaq._core', 'metaq.broker', 'metaq.config', 'metaq.nameserver')\n"
        "loaded = [name for name in sys.modules if name.startswith(heavy)]\n"
        "assert not loaded, loaded"
    )


def test_it_works_where_pytest_is_not_installed() -> None:
    run("import sys; sys.modules['pytest'] = None\nfrom metaq.testing import LocalMetaq, AsyncLocalMetaq")
