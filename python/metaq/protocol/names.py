"""Names of topics and groups: rules, system names, and the topics that belong to a group."""

from __future__ import annotations

import re

TOPIC_CHARACTERS_MAX = 127
RETRY_TOPIC_CHARACTERS_MAX = 255
GROUP_CHARACTERS_MAX = 120
"""A group's name must fit into the names of its retry topic and its dead-letter topic."""

CLIENT_ID_CHARACTERS_MAX = 512

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
REPLY_SUFFIX = "_REPLY_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Its committed offsets tell where the half messages begin that still matter."""
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
"""Consumers send in this group when they make a dead letter of a message that its broker has deleted."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""Readers without a group of their own pull in this one."""
TOOLS_PRODUCER_GROUP = "TOOLS_PRODUCER"
"""The command line and the administration client send in this group."""

SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that every broker has from the start."""

MASTER_ID = 0
"""The broker id that a master registers with, whichever node it is."""

TEMPLATE_TOPIC = "TBW102"
"""Producers ask for this topic's route if theirs does not exist yet; a new topic inherits from it."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECKS_EXHAUSTED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_PRODUCER_GROUP = "_INNER_TRACE_PRODUCER"
PIPELINE_REPORTS_TOPIC = "METAQ_PIPELINE_REPORTS"
"""Pipelines and Spark queries report here how they are. It exists after the first report."""
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
MEMBERS_TOPIC_PREFIX = SYSTEM_PREFIX + "SYNC_BROKER_MEMBER_"
"""Replicas find each other through a topic with this prefix."""

NEVER_SENT_TO = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_DONE_TOPIC,
        CHECKS_EXHAUSTED_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
BROKER_GROUPS = frozenset({TRANSACTION_GROUP})
"""The broker relies on the offsets of these groups, so no client may use them."""
UNCOMMITTED_TOPICS = frozenset({HALF_TOPIC, HALF_DONE_TOPIC})
"""A half message is nobody's before its commit: no client sees it, not even by its id."""
BROKER_TOPICS = UNCOMMITTED_TOPICS | {SCHEDULE_TOPIC, TIMER_TOPIC}
"""Only the broker reads these topics: messages in them are not due yet, or not committed."""
DISPENSABLE = frozenset(
    {TRACE_TOPIC, PIPELINE_REPORTS_TOPIC, BENCHMARK_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC}
)
"""Often nobody consumes these, and they are not worth a full disk."""
RESERVED = NEVER_SENT_TO | {TRACE_TOPIC, BENCHMARK_TOPIC}
TELEMETRY_TOPICS = frozenset({TRACE_TOPIC, PIPELINE_REPORTS_TOPIC})
"""Clients write facts about themselves to these topics. They count as topics of the system."""

_WELL_FORMED = re.compile(r"[%|a-zA-Z0-9_-]+")
_CHARACTERS = "letters, digits, %, |, _ and -"


def topic_fault(name: str) -> str | None:
    """The fault of a topic's name, in words for the person who chose it; None if there is none."""
    if not name.strip():
        return "the topic's name is blank: give it one"
    if name in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        return f"the topic name {name} lacks the group after {name}: choose another"
    is_derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    limit = RETRY_TOPIC_CHARACTERS_MAX if is_derived else TOPIC_CHARACTERS_MAX
    return _fault("topic", name, limit)


def group_fault(name: str) -> str | None:
    """The same for a consumer or producer group."""
    if not name.strip():
        return "the group's name is blank: give it one"
    return _fault("group", name, GROUP_CHARACTERS_MAX)


def client_id_fault(client_id: str) -> str | None:
    """The same for a client id."""
    if not client_id.strip():
        return "the client id is blank: send one"
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        return f"the client id has {len(client_id)} characters, the limit is {CLIENT_ID_CHARACTERS_MAX}"
    return None


def _fault(kind: str, name: str, limit: int) -> str | None:
    # The length is checked first, so that the text that is echoed stays short.
    if len(name) > limit:
        return f"the {kind} name {name[:32]}… has {len(name)} characters, the limit is {limit}: shorten it"
    if not _WELL_FORMED.fullmatch(name):
        return f"the {kind} name {name!a} has characters other than {_CHARACTERS}: choose another"
    return None


def is_client_writable(topic: str) -> bool:
    """False for the topics that only the broker itself writes to."""
    return topic not in NEVER_SENT_TO and not topic.startswith(SYSTEM_PREFIX)


def is_client_readable(topic: str) -> bool:
    """False for the topics that only the broker itself reads."""
    return topic not in BROKER_TOPICS


def is_client_viewable(topic: str) -> bool:
    """False for the topics whose messages no client sees even by their id."""
    return topic not in UNCOMMITTED_TOPICS


def is_client_usable(group: str) -> bool:
    """False for the groups whose offsets the broker itself relies on."""
    return group not in BROKER_GROUPS


def is_system_topic(topic: str) -> bool:
    return topic in TELEMETRY_TOPICS or not is_client_writable(topic)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Returns the topic through which a cluster's brokers pass replies to requests."""
    return cluster + REPLY_SUFFIX


def group_of(topic: str) -> str | None:
    """The group that a retry or dead-letter topic belongs to."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None
