"""Topics of one broker."""

from __future__ import annotations

from metaq.protocol.command import AnswerMax, Command, Fields
from metaq.protocol.ranges import Int32, Name, ShortText, Text
from metaq.settings import MIB


class UpdateAndCreateTopic(Command, code=17, permission="admin", resources={"topic": "topic"}):
    """Creates the topic or changes it."""

    topic: Name
    default_topic: Name = ""
    read_queue_nums: Int32 = 8
    write_queue_nums: Int32 = 8
    perm: Int32 = 6
    topic_filter_type: ShortText = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: Text | None = None
    """`+key=value` sets, `-key` removes, comma-separated."""
    force: bool = False


class UpdateAndCreateTopicList(
    Command, code=18, permission="admin", resources="body", body_bytes_max=4 * MIB
):
    """Body: TopicConfigList."""


class TopicPage(Fields):
    total_topic_num: Int32 | None = None


class GetAllTopicConfig(
    Command,
    code=21,
    permission="cluster",
    resources={},
    reply=TopicPage,
    answer_max=AnswerMax(lines=1_000_000, instead="ask for a page (topicSeq, maxTopicNum)"),
):
    """Body of the answer: TopicConfigTable; with `topic_seq` and `max_topic_num` one page of it."""

    topic_seq: Int32 | None = None
    data_version: ShortText | None = None
    max_topic_num: Int32 | None = None


class DeleteTopicInBroker(Command, code=215, permission="admin", resources={"topic": "topic"}):
    """Deletes the topic, its retry topics and the offsets on it."""

    topic: Name


class GetTopicConfig(
    Command, code=351, permission="describe", resources={"topic": "topic"}, answer_max=AnswerMax()
):
    """Body of the answer: TopicConfig."""

    topic: Name


class GetTopicStatsInfo(
    Command, code=202, permission="describe", resources={"topic": "topic"}, answer_max=AnswerMax()
):
    """Body of the answer: TopicStatsTable."""

    topic: Name


class GetSystemTopicListFromBroker(
    Command, code=305, permission="describe", resources={}, answer_max=AnswerMax()
):
    """Body of the answer: TopicList."""


class CleanUnusedTopic(Command, code=316, permission="admin", resources={}):
    """Drops the consume queues of topics that no longer exist."""
