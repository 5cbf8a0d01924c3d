"""A mirror that would begin in the middle of a topic is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from metaq.pipelines.binlog_mirror import apply, pipeline
from metaq.pipelines.binlog_mirror.apply import Applied, Applier
from metaq.pipelines.binlog_mirror.config import MirrorConfig, read_mirror_config
from metaq.pipelines.binlog_mirror.errors import MirrorError
from metaq.pipelines.binlog_sync.config import SECTIONS


@pytest.fixture
def config(tmp_path: Path) -> MirrorConfig:
    path = tmp_path / "sync.toml"
    path.write_text('[topic]\nname = "changes"\n[mirror]\npath = "mirror"\n')
    return read_mirror_config(path, SECTIONS)


class Frame:
    """Stands for messages whose summary is given by the test."""

    sparkSession = None

    def persist(self, level: object) -> Frame:
        return self

    def unpersist(self) -> None:
        pass


class FakeTarget:
    """A target that lists tables but opens none."""

    def __init__(self, *tables: tuple[str, str]) -> None:
        self._tables = list(tables)

    def is_begun(self) -> bool:
        return bool(self._tables)

    def tables(self) -> list[tuple[str, str]]:
        return self._tables

    def open(self, name: tuple[str, str]) -> None:
        return None

    def left_out(self) -> dict[tuple[str, str], Any]:
        return {}

    def save_left_out(self, tables: Any) -> None:
        pass


def apply_batch(
    config: MirrorConfig, target: FakeTarget, batch_id: int, monkeypatch: pytest.MonkeyPatch, *rows: Row
) -> Applied:
    monkeypatch.setattr(apply, "messages", lambda frame: frame)
    monkeypatch.setattr(apply, "_summary", lambda frame: list(rows))
    fake: Any = target
    frame: Any = Frame()
    applier = Applier(config, lambda spark: fake)
    applier.apply(frame, batch_id, "query")
    return applier.applied


def test_rows_without_a_definition_are_left_out(
    config: MirrorConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be of a table that somebody has invented, so they must not end the run."""
    row = Row(
        database="shop",
        table="t",
        schema=3,
        kind="rows",
        lowest="a1",
        highest="a2",
        rows=1,
        messages=2,
        bytes=1,
        committed_s=1,
        newer=None,
        readable=True,
    )
    applied = apply_batch(config, FakeTarget(), 0, monkeypatch, row)
    assert (applied.foreign, applied.tables) == (2, set())
    assert (
        "2 messages from a1 on with rows of shop.t are left out: the topic has no definition for version 3"
        in caplog.text
    )


def test_a_checkpoint_without_its_mirror(config: MirrorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MirrorError, match="in the middle of the topic") as failure:
        apply_batch(config, FakeTarget(), 7, monkeypatch)
    assert "move the checkpoint away" in failure.value.hint
    apply_batch(config, FakeTarget(("shop", "t")), 7, monkeypatch)
    apply_batch(config, FakeTarget(), 0, monkeypatch)


def test_a_topic_without_its_head(config: MirrorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "queues_without_head", lambda nameservers, topic: [("b", 1), ("b", 2)])
    with pytest.raises(MirrorError, match="in queue 1 of b and 1 more") as failure:
        pipeline._require_head(config)
    assert "state file of binlog-sync away" in failure.value.hint
    monkeypatch.setattr(pipeline, "queues_without_head", lambda nameservers, topic: [])
    pipeline._require_head(config)
