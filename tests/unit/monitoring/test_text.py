"""Prometheus' text format."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from metaq.monitoring.text import Page


def test_prometheus_reads_back_what_was_written() -> None:
    page = Page({"cluster": "c"})
    page.gauge("depth", 1.5, {"topic": 'a"b\\c\nd'})
    page.family("sent_total", "counter", [({"kind": "x"}, 3), ({"kind": "y"}, 2**53)])
    page.family("nothing", "gauge", [])
    families = {family.name: family for family in text_string_to_metric_families(page.text().decode())}
    assert set(families) == {"depth", "sent"}
    (depth,) = families["depth"].samples
    assert (depth.labels, depth.value) == ({"cluster": "c", "topic": 'a"b\\c\nd'}, 1.5)
    assert [sample.value for sample in families["sent"].samples] == [3, 2**53]
