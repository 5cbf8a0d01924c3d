"""Lists of topics and groups: their orders, and the states that rows show."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from metaq.admin.results import BrokerFailure, GroupFigures, NewestMessages, Progress, TopicFigures
from metaq.console.live.tables import DeadLetterRow, GroupRow, GroupTable, TopicRow, TopicTable
from metaq.console.pages import dead_letters, group, group_looks, groups, overview, topic, topics
from tests.support.console_pages import Viewed, html_of

NOTES = ("apache does not report everything in a list",)


def group_row(name: str, lag: int | None, lag_ms: int | None = None, **changes: Any) -> GroupRow:
    figures = {"members": 1, "enabled": True} | changes
    missing = figures.pop("missing", ())
    return GroupRow(
        GroupFigures(name, "normal", ("a",), figures["members"], lag, lag_ms, 0.0, figures["enabled"]),
        None,
        missing,
    )


def with_groups(folder: Path, *rows: GroupRow, notes: tuple[str, ...] = ()) -> Viewed:
    viewed = Viewed(folder)
    table = GroupTable(notes=notes, rows={row.name: row for row in sorted(rows, key=lambda row: row.name)})
    viewed.live.groups = viewed.live.groups.renewed(table, 1)
    return viewed


def shown_groups(text: str) -> list[str]:
    return re.findall(r'<a class="name" href="/groups/([^"]+)"', text)


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (topics.COLUMNS, TopicRow),
        (groups.COLUMNS, GroupRow),
        (dead_letters.COLUMNS, DeadLetterRow),
        (group.QUEUE_COLUMNS, group_looks.QueueRow),
    ],
)
def test_every_column_that_sorts_is_one_of_the_row(columns: tuple[str, ...], row: Any) -> None:
    assert set(columns) <= row.COLUMNS.keys()


def test_the_oldest_topics_come_first(tmp_path: Path) -> None:
    def row(name: str, first_ms: int | None) -> TopicRow:
        return TopicRow(TopicFigures(name, "normal", ("a",), 1, 1, 5, 5, first_ms, None, 0.0, 0.0))

    viewed = Viewed(tmp_path)
    rows = {one.name: one for one in (row("a", 300), row("b", 100), row("c", None), row("d", 200))}
    viewed.live.topics = viewed.live.topics.renewed(TopicTable(rows=rows), 1)
    request = viewed.request("/topics", sort="oldest", order="desc")
    text = html_of(asyncio.run(topics.topics(request)))
    assert re.findall(r'<a class="name" href="/topics/([^"]+)"', text) == ["b", "d", "a", "c"]


def test_the_overview_lists_groups_that_are_behind_first(tmp_path: Path) -> None:
    rows = [group_row("calm", 0), group_row("far", 900), group_row("near", 5), group_row("slow", 7, 60_000)]
    mixed = html_of(asyncio.run(overview.overview(with_groups(tmp_path, *rows, notes=NOTES).request("/"))))
    assert shown_groups(mixed) == ["far", "slow", "near", "calm"]
    known = [group_row("calm", 0), group_row("far", 900, 10), group_row("slow", 7, 60_000)]
    text = html_of(asyncio.run(overview.overview(with_groups(tmp_path, *known).request("/"))))
    assert shown_groups(text) == ["slow", "far", "calm"]


def rows_of(text: str) -> dict[str, str]:
    rows = re.findall(r'<tr id="group-([^"]+)"(.*?)</tr>', text, re.DOTALL)
    return dict(rows)


def test_groups_without_members_and_switched_off_stand_out(tmp_path: Path) -> None:
    viewed = with_groups(
        tmp_path,
        group_row("alone", 7, 60_000, members=0),
        group_row("idle", 0, members=0),
        group_row("off", 7, 60_000, enabled=False),
        group_row("odd", None, missing=("b",)),
        group_row("new", None),
    )
    rows = rows_of(html_of(asyncio.run(groups.groups(viewed.request("/groups")))))
    assert [name for name, row in rows.items() if "No members" in row] == ["alone"]
    assert [name for name, row in rows.items() if "Consumption off" in row] == ["off"]
    assert "unknown" in rows["odd"] and "committed nothing" not in rows["odd"]
    assert "committed nothing" in rows["new"]
    chinese = html_of(asyncio.run(groups.groups(viewed.request("/groups", language="zh"))))
    assert "无在线成员" in chinese and "已停止消费" in chinese


def test_the_newest_message_is_as_old_as_the_poll_says(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    viewed = Viewed(tmp_path)
    live = viewed.live
    live.topics = live.topics.renewed(TopicTable(), now_ms - 20_000)
    row = TopicRow(TopicFigures("t", "normal", ("a",), 1, 1, 5, 5, None, now_ms - 21_000, 0.0, 0.0))
    assert topic._as_of_ms(live, row) == now_ms - 20_000
    stale = TopicRow(row.figures, now_ms - 20_000)
    assert topic._as_of_ms(live, stale) >= now_ms
    assert topic._as_of_ms(live, None) >= now_ms


def test_an_empty_list_is_not_sure_while_a_broker_does_not_answer(tmp_path: Path) -> None:
    away = (BrokerFailure("b", "no answer"),)
    viewed = Viewed(tmp_path)
    viewed.live.topics = viewed.live.topics.renewed(TopicTable(away), 1)
    viewed.live.groups = viewed.live.groups.renewed(GroupTable(away), 1)
    for path, page in (("/topics", topics.topics), ("/groups", groups.groups), ("/", overview.overview)):
        text = html_of(asyncio.run(page(viewed.request(path))))
        assert "The others may have some." in text and "There are no" not in text, path


class Cluster:
    """Stands in for the parts of the admin client that a page of one group or topic asks."""

    def __init__(self) -> None:
        self.groups = self.messages = self

    async def progress(self, name: str, **_: object) -> Progress:
        return Progress(name, ())

    async def newest(self, name: str, **_: object) -> NewestMessages:
        return NewestMessages((), None, False, 0, 0, {})


def test_the_page_of_a_group_says_that_consumption_is_off(tmp_path: Path) -> None:
    for is_on in (True, False):
        viewed = Viewed(tmp_path, Cluster())
        row = group_row("billing", 7, 60_000, members=0, enabled=is_on)
        viewed.live.groups = viewed.live.groups.renewed(GroupTable(rows={"billing": row}), 1)
        text = html_of(asyncio.run(group.lag(viewed.request("/groups/billing"))))
        assert ("Consumption is switched off" in text) is not is_on
        assert "No members" in text


def test_the_messages_of_a_topic_say_when_they_were_loaded(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    viewed = Viewed(tmp_path, Cluster())
    row = TopicRow(TopicFigures("orders", "normal", ("a",), 1, 1, 5, 5, None, now_ms - 600_000, 0.0, 0.0))
    table = TopicTable(rows={"orders": row})
    viewed.live.topics = viewed.live.topics.renewed(table, now_ms - 300_000)
    text = html_of(asyncio.run(topic.topic(viewed.request("/topics/orders"))))
    assert re.search(r'Loaded [\d: -]+ · <a class="[a-z -]+" href="/topics/orders">Refresh</a>', text)
    assert "5 min ago" in text, "at the time of the poll"
