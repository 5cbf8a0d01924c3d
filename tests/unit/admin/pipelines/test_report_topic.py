"""Reports of pipelines in a topic that anybody may send to."""

from __future__ import annotations

from typing import Any

import pytest

from metaq._core import decode_messages
from metaq.admin.pipelines import report_topic
from metaq.admin.pipelines.report_topic import Pipelines
from metaq.admin.pipelines.reports import BODY_BYTES_MAX, PipelineReport, encode
from metaq.client.compression import compress, decompress
from metaq.client.session.routes import Queue
from tests.support.records import record

REPORT = PipelineReport("shop", "binlog-sync", "1", "h", 1, 1, "running")


def test_a_report_is_decompressed_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some KB became 64 MiB before their size was looked at."""
    sizes: list[int] = []

    def inflate(body: bytes, system_flag: int, bytes_max: int | None = None) -> bytes:
        assert bytes_max == BODY_BYTES_MAX
        found = decompress(body, system_flag, bytes_max)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(report_topic, "inflate", inflate)
    anything: Any = None
    pipelines = Pipelines(anything, anything, anything)
    good = encode(REPORT)
    for body in (bytes(16_000_000), good + b" " * BODY_BYTES_MAX, good):
        stored, system_flag = compress(body, 0, "zstd")
        assert system_flag and not pipelines._newest
        (message,), _ = decode_messages(record(stored, system_flag=system_flag), Queue("t", "b", 0))
        pipelines._take(message)
    assert sizes == [len(good)]
    assert pipelines._newest.keys() == {"1"}
