"""Kinds of values in the TOML file of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.pipelines.settings import START, read_sections


def start(tmp_path: Path, line: str) -> object:
    path = tmp_path / "job.toml"
    path.write_text(f"[lake]\n{line}\n")
    return read_sections(path, {"lake": {"start": START}})["lake"]["start"]


def test_a_run_starts_at_the_earliest_or_the_latest_position(tmp_path: Path) -> None:
    assert start(tmp_path, "") == "earliest"
    assert start(tmp_path, 'start = "earliest"') == "earliest"
    assert start(tmp_path, 'start = "latest"') == "latest"
    # These are the words of older versions.
    assert start(tmp_path, 'start = "first"') == "earliest"
    assert start(tmp_path, 'start = "last"') == "latest"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ('"middle"', "must be earliest or latest$"),
        ("7", "must be earliest or latest$"),
        ("[]", "must be earliest or latest$"),
    ],
)
def test_other_words_are_refused(tmp_path: Path, given: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"lake\.start = .*: it {problem}"):
        start(tmp_path, f"start = {given}")
