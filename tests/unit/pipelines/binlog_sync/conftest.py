"""The configuration that the unit tests of binlog-sync share."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.pipelines.binlog_sync.config import BinlogConfig, read_config


@pytest.fixture
def config(tmp_path: Path) -> BinlogConfig:
    (tmp_path / "secret").write_text("pass\n")
    path = tmp_path / "sync.toml"
    path.write_text(
        '[source]\nuser = "metaq"\npassword_file = "secret"\ntables = ["shop.*"]\n'
        '[topic]\nname = "changes"\n[state]\nfile = "state.json"\n'
    )
    return read_config(path)
