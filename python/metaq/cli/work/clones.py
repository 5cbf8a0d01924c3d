"""The topics that `metaq group clone` copies the progress of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaq.errors import CommandError
from metaq.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from metaq.admin import Admin


def topics_to_clone(admin: Admin, source: str, given: Sequence[str] | None) -> list[str]:
    """Returns the given topics, or all in which the group has committed offsets. Raises CommandError."""
    if given:
        return list(dict.fromkeys(given))
    queues = admin.groups.show(source).progress.queues
    found = sorted({progress.queue.topic for progress in queues})
    topics = [topic for topic in found if not topic.startswith(RETRY_PREFIX)]
    if not topics:
        raise CommandError(f"group {source} has committed nothing")
    return topics
