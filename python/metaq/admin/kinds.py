"""Users' topics and groups, and those of the system."""

from __future__ import annotations

from collections.abc import Collection

from metaq.admin.results import GroupKind, TopicKind
from metaq.protocol import names
from metaq.protocol.bodies import ClusterInfo


def topics_of_brokers(info: ClusterInfo) -> set[str]:
    """Returns the topics that brokers name after themselves and their clusters."""
    clusters = {data.cluster for data in info.broker_addr_table.values()}
    return {*info.broker_addr_table, *clusters, *map(names.reply_topic, clusters)}


def topic_kind(topic: str, of_brokers: Collection[str]) -> TopicKind:
    if topic.startswith(names.RETRY_PREFIX):
        return "retry"
    if topic.startswith(names.DEAD_LETTER_PREFIX):
        return "dead-letter"
    is_known = topic in of_brokers or topic in names.RESERVED or topic in names.TELEMETRY_TOPICS
    # Apache's brokers write this prefix in both cases.
    if is_known or topic.lower().startswith(names.SYSTEM_PREFIX):
        return "system"
    return "normal"


def group_kind(group: str) -> GroupKind:
    is_system = group in names.SYSTEM_GROUPS or names.is_system_group(group)
    return "system" if is_system else "normal"
