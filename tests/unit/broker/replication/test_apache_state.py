"""The control state of an Apache master, copied into a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from metaq.broker.replication.apache_source import ApacheSource
from metaq.broker.replication.apache_state import ApacheState
from metaq.broker.state import delay_progress, groups, topics
from metaq.broker.state.offsets import OFFSETS, encode_offsets, offsets_in
from metaq.journal.journal import Journal
from metaq.protocol.bodies import (
    DataVersion,
    DelayOffsets,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from metaq.protocol.command import Command
from metaq.protocol.commands.groups import GetAllSubscriptionGroupConfig
from metaq.protocol.commands.offsets import GetAllConsumerOffset, GetAllDelayOffset
from metaq.protocol.commands.topics import GetAllTopicConfig
from metaq.protocol.reply import Reply
from tests.support.waiting import run


class Master(ApacheSource):
    """Answers as Apache's broker does, a few topics at a time."""

    def __init__(self, page_max: int = 2) -> None:
        super().__init__("127.0.0.1:1")
        self.page_max = page_max
        self.version = DataVersion(counter=1)
        self.topic_names = [f"T{number}" for number in range(5)]
        self.group_names = ["billing"]
        self.offset_table = {"T0@billing": {0: 5, 70: 7, -1: 3}, "T1@billing": {0: -9}}
        self.levels = {1: 4, 2: -1}
        self.asked: list[Command] = []
        self.changes_after: int | None = None
        """The table changes after this number of requests."""

    async def _ask(self, command: Command) -> Reply:
        self.asked.append(command)
        if len(self.asked) == self.changes_after:
            self.topic_names.insert(0, "A")
            self.version = self.version.next(1)
        match command:
            case GetAllTopicConfig():
                return self._topics(command)
            case GetAllSubscriptionGroupConfig():
                table = {name: SubscriptionGroupConfig(group_name=name) for name in self.group_names}
                body = SubscriptionGroupTable(data_version=self.version, subscription_group_table=table)
                return Reply(0, None, {}, body.encode())
            case GetAllConsumerOffset():
                return Reply(0, None, {}, encode_offsets(self.offset_table, self.version))
            case GetAllDelayOffset():
                body = DelayOffsets(offset_table=self.levels).encode(bare_integer_keys=True)
                return Reply(0, None, {}, body)
        raise AssertionError(command)

    def _topics(self, command: GetAllTopicConfig) -> Reply:
        is_same = command.data_version == self.version.encode().decode()
        first = (command.topic_seq or 0) if is_same else 0
        names = sorted(self.topic_names)[first : first + min(command.max_topic_num or 99, self.page_max)]
        table = {name: TopicConfig(topic_name=name) for name in names}
        body = TopicConfigTable(data_version=self.version, topic_config_table=table).encode()
        return Reply(0, None, {"totalTopicNum": str(len(self.topic_names))}, body)


def names_of(journal: Journal, table: str) -> Sequence[str]:
    return sorted(journal.decoded(table, bytes))


@pytest.mark.parametrize("is_replica", [False, True], ids=["lone", "replica"])
def test_everything_is_copied_and_later_only_changes(tmp_path: Path, is_replica: bool) -> None:
    async def scenario() -> None:
        journal, master = Journal.open(tmp_path), Master()
        if is_replica:
            journal.begin_following()
        state = ApacheState(master, journal)
        await state.copy()
        assert names_of(journal, topics.TABLE) == ["T0", "T1", "T2", "T3", "T4"]
        assert names_of(journal, groups.TABLE) == ["billing"]
        assert offsets_in(journal, OFFSETS) == {"T0@billing": {0: 5, 70: 7}}, "only what a queue can have"
        assert journal.decoded(delay_progress.TABLE, int) == {"1": 4}

        point, asked = journal.point, len(master.asked)
        await state.copy()
        assert journal.point == point, "nothing was written"
        assert len(master.asked) == asked + 4, "one small page for topics and groups each"

        master.topic_names, master.group_names = ["T4"], []
        master.offset_table, master.levels = {"T4@billing": {0: 1}}, {1: 9}
        master.version = master.version.next(2)
        await state.copy()
        assert names_of(journal, topics.TABLE) == ["T4"]
        assert names_of(journal, groups.TABLE) == []
        assert offsets_in(journal, OFFSETS) == {"T4@billing": {0: 1}}
        assert journal.decoded(delay_progress.TABLE, int) == {"1": 9}
        await journal.close()

    run(scenario)


def test_a_table_that_changes_between_two_pages_is_read_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal, master = Journal.open(tmp_path), Master()
        master.changes_after = 2
        await ApacheState(master, journal).copy()
        assert names_of(journal, topics.TABLE) == ["A", "T0", "T1", "T2", "T3", "T4"]
        await journal.close()

    run(scenario)
