"""Deletes the topics and groups that attackers have made, as an operator would."""

from __future__ import annotations

import json

from tests.support.hostile import healthy, recording
from tests.support.hostile.costly import forget
from tests.support.hostile.target import Target

GET_ALL_TOPIC_CONFIG, GET_ALL_GROUPS = 21, 201
_KEPT = {healthy.TOPIC, recording.TOPIC, "TBW102", "broker-a", "DefaultCluster"}
_SYSTEM = (
    "rmq_sys",
    "RMQ_SYS",
    "SCHEDULE_TOPIC",
    "TRANS_CHECK",
    "SELF_TEST",
    "BenchmarkTest",
    "OFFSET_MOVED",
)


def forget_strangers(target: Target) -> int:
    """Returns how many there were."""
    with target.connect() as client:
        topics = json.loads(client.call(GET_ALL_TOPIC_CONFIG, {}).body)["topicConfigTable"]
        groups = json.loads(client.call(GET_ALL_GROUPS, {}).body)["subscriptionGroupTable"]
        strange_topics = [
            name
            for name in topics
            if name not in _KEPT and not name.startswith(_SYSTEM) and not name.endswith("_REPLY_TOPIC")
        ]
        strange_groups = [
            name
            for name in groups
            if name not in _KEPT and not name.startswith(("CID_", "TOOLS_", "FILTERSRV"))
        ]
        forget(client, strange_topics, strange_groups)
    return len(strange_topics) + len(strange_groups)
