"""The public surface of the administration client, and its two faces."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

from metaq import admin
from metaq.admin import aio, offsets, purge_results, results, sync, topics
from metaq.admin.brokers import servers
from metaq.admin.groups import consumer_groups
from metaq.admin.groups import sync as sync_groups
from metaq.admin.health import checks
from metaq.admin.messages import dead_letters, stored_messages
from metaq.admin.messages import sync as sync_messages
from metaq.admin.pipelines import report_topic, reports
from metaq.admin.pipelines import sync as sync_pipelines
from metaq.admin.traces import message_traces, timelines
from metaq.admin.waiting import delayed, transactions
from metaq.admin.waiting import results as waiting_results
from metaq.admin.waiting import sync as sync_waiting
from metaq.client.session.routes import Queue

PAIRS = [
    (sync.Admin, aio.Admin),
    (sync.Topics, topics.Topics),
    (sync_groups.ConsumerGroups, consumer_groups.ConsumerGroups),
    (sync.Offsets, offsets.Offsets),
    (sync_messages.Messages, stored_messages.Messages),
    (sync_messages.DeadLetters, dead_letters.DeadLetters),
    (sync_waiting.Delayed, delayed.Delayed),
    (sync_waiting.Transactions, transactions.Transactions),
    (sync.Traces, message_traces.Traces),
    (sync.Brokers, servers.Brokers),
    (sync.HealthChecks, checks.HealthChecks),
    (sync_pipelines.Pipelines, report_topic.Pipelines),
]


def test_the_surface_is_pinned() -> None:
    assert admin.__all__ == [
        "READ",
        "WRITE",
        "Admin",
        "Bounds",
        "Broker",
        "BrokerConfiguration",
        "BrokerFailure",
        "BrokerFigures",
        "BrokerHealth",
        "BrokerOption",
        "Cluster",
        "ConnectedClient",
        "ConnectedClients",
        "Credentials",
        "DeadLetter",
        "DeadLetterCount",
        "DeadLetterPage",
        "DeadLetterReason",
        "Decision",
        "DelayLevelCount",
        "DelayedMessage",
        "DelayedMessages",
        "DelayedOverview",
        "DueBucket",
        "Finding",
        "Group",
        "GroupFigures",
        "GroupName",
        "GroupOverview",
        "GroupSettings",
        "Groups",
        "Health",
        "Limits",
        "Member",
        "Members",
        "MessageCopy",
        "NameServer",
        "NewestMessages",
        "OpenTransaction",
        "OpenTransactions",
        "PipelineReport",
        "PipelineReports",
        "Position",
        "Progress",
        "Purge",
        "QueuePart",
        "QueueProgress",
        "QueuePurge",
        "QueueReset",
        "QueueState",
        "Rate",
        "ResendOutcome",
        "Reset",
        "Retention",
        "RouteBroker",
        "RunningMember",
        "RunningMembers",
        "Subscription",
        "SubscriptionConflict",
        "Switched",
        "Timeline",
        "TimelineEvent",
        "TimelineGroup",
        "Topic",
        "TopicFigures",
        "TopicName",
        "TopicOverview",
        "TopicRoute",
        "TopicSettings",
        "aio",
        "parse_position",
        "spans",
    ]
    assert aio.__all__ == ["Admin"]
    assert all(hasattr(admin, name) for name in admin.__all__)


def shown(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


@pytest.mark.parametrize(("plain", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_faces_have_the_same_names_signatures_and_words(plain: type, asynchronous: type) -> None:
    assert shown(plain) == shown(asynchronous)
    for name in ("__init__", *shown(plain)) if plain is sync.Admin else shown(plain):
        one, other = getattr(plain, name), getattr(asynchronous, name)
        assert inspect.signature(one).parameters == inspect.signature(other).parameters, name
        assert inspect.getdoc(one) == inspect.getdoc(other), name
        assert inspect.getdoc(one), name


def test_the_parts_of_both_faces_are_the_same() -> None:
    with admin.Admin() as plain:
        parts = {name for name in vars(plain) if not name.startswith("_")}
    assert parts == {name for name in vars(aio.Admin()) if not name.startswith("_")}
    assert parts == {
        "topics",
        "offsets",
        "groups",
        "messages",
        "dead_letters",
        "delayed",
        "transactions",
        "traces",
        "brokers",
        "health",
        "pipelines",
    }


def test_results_are_frozen_and_public() -> None:
    found = (
        *vars(results).values(),
        *vars(purge_results).values(),
        *vars(waiting_results).values(),
        *vars(timelines).values(),
        *vars(reports).values(),
    )
    kinds = [kind for kind in found if dataclasses.is_dataclass(kind) and kind is not Queue]
    assert len(kinds) > 20
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind  # type: ignore[attr-defined]
        assert kind.__name__ in admin.__all__  # type: ignore[union-attr]


def test_nothing_of_the_servers_and_no_telemetry_is_loaded() -> None:
    program = (
        "import sys, metaq.admin\n"
        "heavy = ('metaq.broker', 'metaq.nameserver', 'opentelemetry', 'typer')\n"
        "print(*(name for name in sys.modules if name.startswith(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
