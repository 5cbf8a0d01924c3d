"""Consumer groups of one broker."""

from __future__ import annotations

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, Name, ShortText
from metaq.settings import MIB


class UpdateAndCreateSubscriptionGroup(Command, code=200, permission="admin", resources="body"):
    """Body: SubscriptionGroupConfig."""


class UpdateAndCreateSubscriptionGroupList(
    Command, code=225, permission="admin", resources="body", body_bytes_max=MIB
):
    """Body: SubscriptionGroupList."""


class GroupPage(Fields):
    total_group_num: Int32 | None = None


class GetAllSubscriptionGroupConfig(
    Command,
    code=201,
    permission="cluster",
    resources={},
    reply=GroupPage,
    answer_max=AnswerMax(lines=1_000_000, instead="ask for a page (groupSeq, maxGroupNum)"),
):
    """Body of the answer: SubscriptionGroupTable; with `group_seq` and `max_group_num` one page of it."""

    group_seq: Int32 | None = None
    data_version: ShortText | None = None
    max_group_num: Int32 | None = None


class DeleteSubscriptionGroup(Command, code=207, permission="admin", resources={"group_name": "group"}):
    """4.9 names the second field removeOffset."""

    group_name: Name
    clean_offset: bool = False
    remove_offset: bool = False


class GetSubscriptionGroupConfig(
    Command,
    code=352,
    permission="describe",
    resources={"group": "group"},
    answer_max=AnswerMax(),
    ends_with_connection=False,
):
    """Body of the answer: SubscriptionGroupConfig."""

    group: Name


class QueryTopicConsumeByWho(
    Command, code=300, permission="describe", resources={"topic": "topic"}, answer_max=AnswerMax()
):
    """Body of the answer: GroupList."""

    topic: Name


class QueryTopicsByConsumer(
    Command, code=343, permission="describe", resources={"group": "group"}, answer_max=AnswerMax()
):
    """Body of the answer: TopicList."""

    group: Name


class QuerySubscriptionByConsumer(
    Command,
    code=345,
    permission="describe",
    resources={"topic": "topic", "group": "group"},
    answer_max=AnswerMax(),
):
    """Body of the answer: SubscriptionAnswer."""

    group: Name
    topic: Name


class UpdateAndGetGroupForbidden(
    Command, code=353, permission="admin", resources={"topic": "topic", "group": "group"}
):
    """Forbids a group one topic or allows it again, or only asks; body of the answer: GroupForbidden."""

    group: Name
    topic: Name
    readable: bool | None = None


class SetMessageRequestMode(Command, code=401, permission="admin", resources="body"):
    """Body: MessageRequestMode."""


class GetAllMessageRequestMode(Command, code=402, permission="cluster", resources={}, answer_max=AnswerMax()):
    """Body of the answer: MessageRequestModes."""
