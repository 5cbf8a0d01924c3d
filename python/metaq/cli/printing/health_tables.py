"""The health of a cluster, its brokers and its clients, for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from metaq.admin.health.support_documents import health_record
from metaq.cli.invocation import Format
from metaq.cli.printing.formats import UNKNOWN, moment, rate, share, span
from metaq.cli.printing.output import Column, print_json, print_one, print_rows, say

if TYPE_CHECKING:
    from metaq.admin import BrokerHealth, ConnectedClient, Finding, Health
    from metaq.admin.health.results import ScrubHealth


def print_health(health: Health, output: Format) -> None:
    """Prints one sentence, its reasons, and the tables of brokers and broker groups."""
    if output is Format.json:
        print_json(health_record(health))
    elif output is Format.csv:
        print_one(output, health_record(health), "")
    else:
        say(health.summary)
        urgent = [finding for finding in health.findings if finding.severity != "info"]
        if len(urgent) == 1:
            say(f"  → {urgent[0].command}")  # The first line says everything else.
        else:
            for line in finding_lines(urgent):
                say(line)
        if health.brokers:
            say()
            print_rows(output, [_row(broker) for broker in health.brokers], BROKER_COLUMNS, empty="")
        replicated = [group for group in health.groups if len(group.nodes) > 1]
        if replicated:
            from metaq.cli.printing.group_tables import print_groups

            print_groups(replicated)


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Two lines for each finding: the sentence, and the command."""
    for finding in findings:
        since = f" Since {moment(finding.since_ms)}." if finding.since_ms is not None else ""
        yield f"  {finding.severity:<8}  {finding.text}{since}"
        yield f"            → {finding.command}"


def _row(broker: BrokerHealth) -> dict[str, Any]:
    version = broker.version
    if broker.metaq_version is not None:
        version = f"MetaQ {broker.metaq_version}"
    up_ms = None if broker.started_ms is None else max(time.time() * 1000 - broker.started_ms, 0)
    role = "master" if broker.role == "master" else f"replica {broker.id}"
    shown = {"shown_role": role, "shown_version": version, "up_ms": up_ms}
    return {**asdict(broker), **shown, "shown_scrub": scrub_text(broker.scrub)}


def scrub_text(scrub: ScrubHealth | None) -> str:
    """Returns the progress of a scrub, its findings and the repairs, such as `42 %, 1 repaired`."""
    if scrub is None:
        return UNKNOWN
    parts = ["off"] if not scrub.is_on else []
    if scrub.percent is not None:
        parts = [f"{scrub.percent} %"]
    elif scrub.completed_ms is not None:
        parts = [f"{span(max(time.time() * 1000 - scrub.completed_ms, 0))} ago"]
    if scrub.unrepaired:
        parts.append(f"{scrub.unrepaired} damaged")
    if scrub.repaired:
        parts.append(f"{scrub.repaired} repaired")
    return ", ".join(parts) or UNKNOWN


def _in_or_out(per_second: float | None) -> str:
    return UNKNOWN if per_second is None else rate(per_second)


BROKER_COLUMNS: Final = (
    Column("name", "broker"),
    Column("shown_role", "role"),
    Column("address"),
    Column("messages_in_per_second", "in", _in_or_out, right=True),
    Column("messages_out_per_second", "out", _in_or_out, right=True),
    Column("disk_used_ratio", "disk", share, right=True),
    Column("shown_scrub", "scrubbed", is_optional=True),
    Column("shown_version", "version", is_optional=True),
    Column("up_ms", "up", span, right=True, is_optional=True),
    Column("cluster", is_optional=True),
)
CLIENT_COLUMNS: Final = (
    Column("kind"),
    Column("group"),
    Column("client_id", "client"),
    Column("address"),
    Column("language", is_optional=True),
    Column("version", is_optional=True),
    Column("heartbeat_ms", "last heartbeat", moment, is_optional=True),
    Column("brokers", is_optional=True),
)


def print_clients(clients: Sequence[ConnectedClient], output: Format) -> None:
    rows = [asdict(client) for client in clients]
    print_rows(output, rows, CLIENT_COLUMNS, empty="No producer or consumer is connected.")
