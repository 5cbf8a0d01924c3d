"""Commands to a name server: routes of topics, clusters and configured values."""

from __future__ import annotations

from typing import Final

import msgspec

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, LongText, Name, ShortText, Text

TOPICS_MAX: Final = 4_000_000
"""Topics of one list. Their bytes end it earlier."""


class GetRouteInfoByTopic(
    Command,
    code=105,
    permission="describe",
    resources={"topic": "topic"},
    to="nameserver",
    answer_max=AnswerMax(),
    ends_with_connection=False,
    has_reserved_slots=True,
):
    """Body of the answer: TopicRouteData."""

    topic: Name
    accept_standard_json_only: bool = False
    zone_mode: ShortText | None = msgspec.field(default=None, name="__ZONE_MODE")
    zone_name: Name | None = msgspec.field(default=None, name="__ZONE_NAME")


class GetBrokerClusterInfo(
    Command, code=106, permission="describe", resources={}, to="nameserver", answer_max=AnswerMax()
):
    """Body of the answer: ClusterInfo."""


class GetAllTopicListFromNameServer(
    Command,
    code=206,
    permission="describe",
    resources={},
    to="nameserver",
    answer_max=AnswerMax(lines=TOPICS_MAX),
):
    """Body of the answer: TopicList."""


class GetTopicsByCluster(
    Command,
    code=224,
    permission="describe",
    resources={},
    to="nameserver",
    answer_max=AnswerMax(lines=TOPICS_MAX),
):
    """Body of the answer: TopicList."""

    cluster: Name


class GetSystemTopicListFromNameServer(
    Command, code=304, permission="describe", resources={}, to="nameserver", answer_max=AnswerMax()
):
    """Body of the answer: TopicList with one broker's address."""


class GetUnitTopicList(
    Command,
    code=311,
    permission="describe",
    resources={},
    to="nameserver",
    answer_max=AnswerMax(lines=TOPICS_MAX),
):
    """Topics that belong to a unit; body of the answer: TopicList."""


class GetHasUnitSubTopicList(
    Command,
    code=312,
    permission="describe",
    resources={},
    to="nameserver",
    answer_max=AnswerMax(lines=TOPICS_MAX),
):
    """Topics that a unit subscribes to; body of the answer: TopicList."""


class GetHasUnitSubUnUnitTopicList(
    Command,
    code=313,
    permission="describe",
    resources={},
    to="nameserver",
    answer_max=AnswerMax(lines=TOPICS_MAX),
):
    """Topics that a unit subscribes to without belonging to one; body of the answer: TopicList."""


class WritePermissionsWiped(Fields):
    wipe_topic_count: Int32


class WipeWritePermissionOfBroker(
    Command, code=205, permission="admin", resources={}, to="nameserver", reply=WritePermissionsWiped
):
    """Hides a broker's topics from producers, for example before a restart."""

    broker_name: Name


class WritePermissionsAdded(Fields):
    add_topic_count: Int32


class AddWritePermissionOfBroker(
    Command, code=327, permission="admin", resources={}, to="nameserver", reply=WritePermissionsAdded
):
    """Undoes the wipe."""

    broker_name: Name


class DeleteTopicInNameServer(
    Command, code=216, permission="admin", resources={"topic": "topic"}, to="nameserver"
):
    """Forgets the topic's queues on the brokers of one cluster or on all brokers."""

    topic: Name
    cluster_name: Name | None = None


class RegisterTopicInNameServer(
    Command, code=217, permission="cluster", resources={"topic": "topic"}, to="nameserver"
):
    """Sent by a broker with a changed topic. Body: TopicRouteData; only its queues count."""

    topic: Name


class PutKeyValue(Command, code=100, permission="admin", resources={}, to="nameserver"):
    """Sets one value of the name server's table."""

    namespace: Name
    key: Text
    value: LongText


class ValueOfKey(Fields):
    value: LongText | None = None


class GetKeyValue(Command, code=101, permission="describe", resources={}, to="nameserver", reply=ValueOfKey):
    """Code 22 if there is none."""

    namespace: Name
    key: Text


class DeleteKeyValue(Command, code=102, permission="admin", resources={}, to="nameserver"):
    """Succeeds even if there was none."""

    namespace: Name
    key: Text


class GetKeyValuesByNamespace(
    Command, code=219, permission="describe", resources={}, to="nameserver", answer_max=AnswerMax()
):
    """Body of the answer: KVTable; code 22 if the namespace is unknown."""

    namespace: Name


class UpdateNameServerConfig(Command, code=318, permission="admin", resources={}, to="nameserver"):
    """Body: properties text."""


class GetNameServerConfig(Command, code=319, permission="admin", resources={}, to="nameserver"):
    """Body of the answer: properties text."""
