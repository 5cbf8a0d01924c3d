"""A mirror that would begin in the middle of a topic is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from metaq.pipelines.binlog_mirror import apply, pipeline
from metaq.pipelines.binlog_mirror.apply import Applier
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


def apply_batch(
    config: MirrorConfig, target: FakeTarget, batch_id: int, monkeypatch: pytest.MonkeyPatch, *rows: Row
) -> None:
    monkeypatch.setattr(apply, "messages", lambda frame: frame)
    monkeypatch.setattr(apply, "_summary", lambda frame: list(rows))
    fake: Any = target
    frame: Any = Frame()
    Applier(config, lambda spark: fake).apply(frame, batch_id, "query")


def test_rows_without_a_definition(config: MirrorConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(
        database="shop",
        table="t",
        schema=3,
        kind="rows",
        lowest="a1",
        highest="a2",
        rows=1,
        newer=None,
        readable=True,
    )
    with pytest.raises(MirrorError, match=r"no definition for version 3 of shop\.t at a1") as failure:
        apply_batch(config, FakeTarget(), 0, monkeypatch, row)
    assert "restart binlog-sync" in failure.value.hint


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
