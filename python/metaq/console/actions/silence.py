"""Brokers that a preview knows nothing of, because they do not answer.

A count without them is a lower bound. They keep what they have: a topic or group that was deleted meanwhile
comes back with its broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaq.admin.results import BrokerFailure
from metaq.console.actions.action import Call


def silent_brokers(
    call: Call, failures: Iterable[BrokerFailure] = (), *, topic: str = "", group: str = ""
) -> list[str]:
    """Returns the brokers that did not answer just now, and those that did not answer the newest look and
    have the topic or the group. The name servers no longer list a broker that has been away for long."""
    brokers = {failure.broker for failure in failures}
    tables = ((call.console.live.topics.value, topic), (call.console.live.groups.value, group))
    for table, name in tables:
        row = table.rows.get(name) if table is not None and name else None
        brokers.update(row.missing if row is not None else ())
    return sorted(brokers)


def silence_warnings(call: Call, brokers: Iterable[str]) -> list[str]:
    """Returns a sentence for each of these brokers."""
    return [call.t("actions.broker_left_out", broker=broker) for broker in brokers]


def at_least(count: int, silent: Iterable[str]) -> str:
    """Returns a count; a lower bound if some brokers were not counted."""
    return f"≥ {count:,}" if any(silent) else f"{count:,}"
