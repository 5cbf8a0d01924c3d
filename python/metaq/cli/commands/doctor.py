"""metaq doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.flags import ClusterName, NameServers, Output, RegisterAddress

if TYPE_CHECKING:
    from metaq.admin import Finding


def doctor(
    register: RegisterAddress = None,
    namesrv: NameServers = None,
    cluster: ClusterName = None,
    output: Output = Format.table,
) -> None:
    """Find what is wrong, and the commands that mend it.

    It checks this machine first: the file of contexts, the environment and the data directory. Then it checks
    the cluster: name servers, brokers, replication, disks, clocks, consumers and dead letters. The exit code
    is 10 if something critical was found.
    """
    from metaq.admin.health.findings import RANKS
    from metaq.admin.health.support_documents import health_record
    from metaq.cli.exits import UNHEALTHY
    from metaq.cli.printing.health_tables import finding_lines
    from metaq.cli.printing.output import print_one
    from metaq.cli.work.client_checks import check_here
    from metaq.cli.work.health_wait import check_health
    from metaq.errors import ConfigError

    found: list[Finding] = list(check_here())
    record = {}
    summary = ""
    try:
        health = check_health(register=register, namesrv=namesrv, cluster=cluster)
    except ConfigError:
        # The settings that name the cluster are wrong, and a finding says so.
        if not found:
            raise
    else:
        found = sorted((*found, *health.findings), key=lambda finding: RANKS.index(finding.severity))
        record, summary = health_record(health), health.summary
    is_well = all(finding.severity != "critical" for finding in found)
    lines = [summary] if summary else []
    lines += finding_lines(found) if found else ["Nothing was found."]
    print_one(output, {**record, "healthy": is_well, "findings": found}, lines)
    if not is_well:
        raise typer.Exit(UNHEALTHY)
