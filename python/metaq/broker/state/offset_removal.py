"""Removes the committed offsets of a topic or a group, of which there may be very many."""

from __future__ import annotations

from metaq._core import BrokerPlane
from metaq.broker.requests.spaced_work import letting_others_run


def remove_offsets_of_group(plane: BrokerPlane, group: str) -> None:
    """Removes them one topic after the other. For a thread: commits and the event loop go on meanwhile."""
    for topic in letting_others_run(plane.topics_of_group(group)):
        plane.remove_offsets(group=group, topic=topic)


def remove_offsets_of_topic(plane: BrokerPlane, topic: str) -> None:
    """The same, one group after the other."""
    for group in letting_others_run(plane.groups_of_topic(topic)):
        plane.remove_offsets(group=group, topic=topic)
