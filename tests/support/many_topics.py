"""10,000 topics and 2,000 groups, in files that a broker reads when it starts: that takes a second."""

from __future__ import annotations

import json
from pathlib import Path

TOPICS, GROUPS = 10_000, 2_000


def topic(number: int) -> str:
    return f"topic-{number:05}"


def group(number: int) -> str:
    return f"group-{number:05}"


def write_files(directory: Path) -> None:
    """Each group consumes one topic of eight queues."""
    directory.mkdir(parents=True)
    queues = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
    topics = {topic(number): {"topicName": topic(number), **queues} for number in range(TOPICS)}
    groups = {group(number): {"groupName": group(number)} for number in range(GROUPS)}
    places = {
        f"{topic(number)}@{group(number)}": {str(queue_id): 0 for queue_id in range(8)}
        for number in range(GROUPS)
    }
    version = {"counter": 1, "timestamp": 1}
    tables = {
        "topics.json": {"topicConfigTable": topics, "dataVersion": version},
        "subscriptionGroup.json": {"subscriptionGroupTable": groups, "dataVersion": version},
        "consumerOffset.json": {"offsetTable": places},
    }
    for name, table in tables.items():
        (directory / name).write_text(json.dumps(table))
