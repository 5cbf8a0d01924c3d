"""Judges what a health check has collected: one finding for each thing that is wrong or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from metaq.admin.health.consumption_findings import of_consumption
from metaq.admin.health.damage_findings import of_damage
from metaq.admin.health.results import Finding, FindingFields, Severity
from metaq.admin.health.state import BrokerState, ClusterState
from metaq.protocol.bodies import READ, WRITE
from metaq.protocol.commands.replication import GroupStatus, NodeStatus
from metaq.protocol.names import MASTER_ID

APACHE_REFUSE_PERCENT: Final = 90
APACHE_CLEAN_PERCENT: Final = 75
"""The levels of a broker that does not report its own: Apache's defaults."""
LEVEL_PERCENT_MAX: Final = 99
"""The highest level that an operator can set."""
HOUR_MS: Final = 3_600_000
CLOCK_SKEW_MS_MAX: Final = 2_000
SLOW_ACK_MS: Final = 100
"""A replica that takes this long to acknowledge messages is worth a look."""

RANKS: Final[tuple[Severity, ...]] = ("critical", "warning", "info")


def judge(state: ClusterState) -> tuple[Finding, ...]:
    """Returns the findings, the worst first. Findings of the same severity keep their order: name servers,
    brokers, replication, then consumption."""
    found = chain(
        _of_name_servers(state),
        _of_reachability(state),
        _of_replication(state),
        *(_of_broker(broker, state.now_ms) for broker in state.brokers),
        _of_versions(state),
        of_consumption(state),
        _of_unknown(state),
    )
    return tuple(sorted(map(_printable, found), key=lambda finding: RANKS.index(finding.severity)))


def _printable(finding: Finding) -> Finding:
    """Filters and errors come from elsewhere. They must not be able to move a terminal's cursor."""
    fields = {
        name: _without_controls(value) if isinstance(value, str) else value
        for name, value in finding.fields.items()
    }
    return replace(finding, text=_without_controls(finding.text), fields=fields)


def _without_controls(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def summarize(findings: tuple[Finding, ...], brokers: int) -> str:
    """Returns the health in one sentence with its first reasons."""
    critical = [finding.text for finding in findings if finding.severity == "critical"]
    warnings = [finding.text for finding in findings if finding.severity == "warning"]
    if critical:
        return f"Unhealthy: {_first(critical)}"
    healthy = f"Healthy: {brokers} broker answers" if brokers == 1 else f"Healthy: {brokers} brokers answer"
    return f"{healthy}, but {_first(warnings)}" if warnings else f"{healthy}."


def _first(texts: list[str]) -> str:
    more = len(texts) - 2
    shown = "; ".join(_inside(text) for text in texts[:2])
    return f"{shown}; and {more} more." if more > 0 else f"{shown}."


def _inside(text: str) -> str:
    """A sentence within a sentence. Names keep their capitals."""
    starts = text.partition(" ")[0] in ("The", "In", "No", "On")
    return (text[0].lower() + text[1:] if starts else text).removesuffix(".")


def _of_name_servers(state: ClusterState) -> Iterator[Finding]:
    faults = [server for server in state.name_servers if server.error is not None]
    for server in faults:
        if server.address in state.mistaken:
            right = state.mistaken[server.address]
            command = f"metaq cluster status --namesrv '{right}'" if right else "metaq doctor"
            text = f"{server.address} is a broker, not a name server"
            hint = f"; its name servers are {right}" if right else ""
            yield Finding(
                "critical",
                "not-a-name-server",
                server.address,
                f"{text}{hint}.",
                command,
                fields={"address": server.address},
            )
        else:
            is_last = len(faults) == len(state.name_servers)
            reason = _reason(server.error)
            yield Finding(
                "critical" if is_last else "warning",
                "name-server-unreachable",
                server.address,
                f"The name server {server.address} does not answer: {reason}.",
                f"metaq nameserver --listen {server.address}",
                fields={"address": server.address, "reason": reason},
            )


def _reason(error: str | None) -> str:
    if "Connect call failed" in (error or ""):
        return "it refuses the connection"
    return (error or "unknown").split("; ")[0].removesuffix(".")


def _of_reachability(state: ClusterState) -> Iterator[Finding]:
    answered = [server for server in state.name_servers if server.error is None]
    if not state.brokers and (answered or not state.name_servers):
        yield Finding(
            "critical",
            "no-brokers",
            answered[0].address if answered else "register",
            "No broker is registered, so clients can neither send nor receive.",
            f"metaq broker --namesrv {answered[0].address}" if answered else "metaq broker",
        )
    replicated = {node.address for group in state.groups if _is_replicated(group) for node in group.nodes}
    with_master = {broker.name for broker in state.brokers if broker.is_master}
    is_local = all(is_loopback(server.address) for server in state.name_servers)
    for broker in state.brokers:
        if broker.error is None:
            continue
        if is_loopback(broker.address) and not is_local:
            yield Finding(
                "critical",
                "loopback-advertised",
                broker.name,
                f"{broker.label} is registered as {broker.address}, which no other machine can reach.",
                f"metaq broker --name {broker.name} --set advertised_host=ADDRESS",
                fields={"broker": broker.label, "address": broker.address},
            )
        elif broker.address not in replicated:
            servers = f" --namesrv '{';'.join(server.address for server in answered)}'" if answered else ""
            reason = _reason(broker.error)
            yield Finding(
                "critical",
                "broker-unreachable",
                broker.name,
                f"{broker.label} does not answer at {broker.address}: {reason}.",
                f"metaq broker --name {broker.name}{servers}",
                fields={"broker": broker.label, "address": broker.address, "reason": reason},
            )
    grouped = {group.name for group in state.groups}
    for name in sorted({broker.name for broker in state.brokers} - with_master - grouped):
        yield Finding(
            "critical",
            "no-master",
            name,
            f"{name} has no master, so it takes no messages.",
            "metaq cluster status --wait-healthy",
            fields={"group": name},
        )


def _of_replication(state: ClusterState) -> Iterator[Finding]:
    for note in state.notes:
        yield Finding(
            "warning",
            "register-record",
            "register",
            f"{note}.",
            "metaq cluster status",
            fields={"note": note},
        )
    for broker in state.brokers:
        yield from _of_apache_replicas(state, broker)
    for group in state.groups:
        if not _is_replicated(group):
            continue
        master = group.node(group.master)
        waiting = "metaq cluster status --wait-healthy"
        if master is None:
            text = f"{group.name} has no master, so it takes no messages."
            yield Finding("critical", "no-master", group.name, text, waiting, fields={"group": group.name})
        for node in group.nodes:
            yield from _of_node(group, node, state)
        yield from _of_register(group)
        yield from _of_slow_replicas(group)
        living = len(set(group.in_sync) - {node.id for node in group.nodes if node.state in _DEAD})
        if master is not None and living < group.min_in_sync:
            text = (
                f"{group.name} takes no messages, unless it has replicas=async: {living} of at least "
                f"{group.min_in_sync} nodes are in sync and answer."
            )
            fields: FindingFields = {"group": group.name, "nodes": living, "least": group.min_in_sync}
            yield Finding("critical", "too-few-in-sync", group.name, text, waiting, fields=fields)


def _of_apache_replicas(state: ClusterState, broker: BrokerState) -> Iterator[Finding]:
    """An Apache master calls a replica in sync that lacks less than 256 MiB."""
    if broker.apache_replicas is None:
        return
    waiting = "metaq cluster status --wait-healthy"
    registered = sum(other.name == broker.name and not other.is_master for other in state.brokers)
    if len(broker.apache_replicas) < registered:
        replicas = "1 replica" if registered == 1 else f"{registered} replicas"
        copying = len(broker.apache_replicas)
        text = f"{broker.name} has {replicas} registered, but {copying} connected to copy from it."
        fields: FindingFields = {"broker": broker.name, "registered": registered, "connected": copying}
        yield Finding("critical", "replica-not-connected", broker.name, text, waiting, fields=fields)
    for replica in broker.apache_replicas:
        if not replica.in_sync:
            lag_bytes = max(replica.diff, 0)
            text = f"The replica of {broker.name} at {replica.addr} is {_size(lag_bytes)} behind."
            fields = {"broker": broker.name, "address": replica.addr, "lag_bytes": lag_bytes}
            yield Finding("critical", "replica-behind", broker.name, text, waiting, fields=fields)


_DEAD: Final = ("gone", "failed")
NODE_WORDS: Final = {
    "gone": "does not answer",
    "failed": "has a disk that fails or hangs",
    "damaged": "has a damaged log",
    "full": "has a full disk",
    "catching up": "is catching up",
    "waiting": "waits for a master to copy from",
    "candidate": "wants to become master",
    "leaving": "was drained and leaves",
}


def _of_node(group: GroupStatus, node: NodeStatus, state: ClusterState) -> Iterator[Finding]:
    if node.same_id:
        text = (
            f"In {group.name}, two nodes have the id {node.id}: one at {node.address} and one at "
            f"{node.same_id}. Stop one of them, and give it an id of its own."
        )
        both: FindingFields = {
            "group": group.name,
            "node": node.id,
            "address": node.address,
            "other": node.same_id,
        }
        yield Finding(
            "critical", "node-id-twice", f"{group.name}/{node.id}", text, "metaq cluster status", fields=both
        )
    if node.state == "in sync":
        return
    who = f"the master, node {node.id}," if node.id == group.master else f"node {node.id}"
    lag = f", {_size(node.lag_bytes)} behind" if node.lag_bytes and node.state not in _DEAD else ""
    where = f" at {node.address}" if node.state == "gone" and node.address else ""
    if node.state == "damaged" and node.damaged_at is not None:
        where = f" at {node.damaged_at}"
    why = f": {node.problem}" if node.problem else ""
    yield Finding(
        "info" if node.state == "leaving" else "critical",
        f"node-{node.state.replace(' ', '-')}",
        f"{group.name}/{node.id}",
        f"In {group.name}, {who} {NODE_WORDS[node.state]}{where}{lag}{why}.",
        _start_command(group, node, state) if node.state == "gone" else "metaq cluster status --wait-healthy",
        None if node.lag_ms is None else state.now_ms - node.lag_ms,
        {
            "group": group.name,
            "node": node.id,
            "role": "master" if node.id == group.master else "replica",
            "address": node.address or "",
            "lag_bytes": node.lag_bytes or 0,
            "damaged_at": node.damaged_at or 0,
            "problem": node.problem,
        },
    )


def _of_register(group: GroupStatus) -> Iterator[Finding]:
    """A register that lost its newest state: an operator has to decide, because nobody is elected."""
    for node in group.nodes:
        if node.register_fault:
            yield Finding(
                "critical",
                "register-refused",
                f"{group.name}/{node.id}",
                f"In {group.name}, node {node.id} refuses the record in the register: {node.register_fault}.",
                f"metaq cluster switch {group.name} --to ID --force",
                fields={"group": group.name, "node": node.id, "reason": node.register_fault},
            )


def _start_command(group: GroupStatus, node: NodeStatus, state: ClusterState) -> str:
    """Returns the command that starts a node again, with placeholders for what only its machine knows."""
    listen = f" --listen {node.address}" if node.address else ""
    servers = ";".join(server.address for server in state.name_servers)
    if group.node(MASTER_ID) is None:
        role = f"--register {state.register or 'REGISTER'}"
    elif node.id == MASTER_ID:
        role = f"--replica-ids {','.join(str(one.id) for one in group.nodes if one.id != MASTER_ID)}"
    else:
        role = "--master MASTER_HOST:REPLICATION_PORT"
    names = f" --namesrv '{servers}'" if servers else ""
    return (
        f"metaq broker --name {group.name} --id {node.id} --data DIRECTORY{listen} {role} "
        f"--cluster-key KEY_FILE{names}"
    )


def _of_slow_replicas(group: GroupStatus) -> Iterator[Finding]:
    """Every message waits for the slowest node in sync."""
    times = {
        node.id: node.ack_ms for node in group.nodes if node.state == "in sync" and node.ack_ms is not None
    }
    for node_id, ack_ms in times.items():
        others = max((other for one, other in times.items() if one != node_id), default=None)
        if ack_ms < SLOW_ACK_MS or (others is not None and ack_ms < others):
            continue
        beside = "" if others is None else f"; the others take {others:,} ms at most"
        text = (
            f"In {group.name}, node {node_id} holds every message up: it acknowledges after {ack_ms:,} ms"
            f"{beside}. Look at its disk and its network."
        )
        fields: FindingFields = {
            "group": group.name,
            "node": node_id,
            "ack_ms": ack_ms,
            "others_ms": others or 0,
        }
        source = f"{group.name}/{node_id}"
        yield Finding("warning", "node-slow", source, text, "metaq cluster status", fields=fields)


def _is_replicated(group: GroupStatus) -> bool:
    return len(group.nodes) > 1


def _size(number: int) -> str:
    return f"{number / 1024:,.0f} KiB" if number < 10 * 1024**2 else f"{number / 1024**2:,.0f} MiB"


def _of_broker(broker: BrokerState, now_ms: int) -> Iterator[Finding]:
    if broker.error is not None:
        return
    show = f"metaq cluster config get {broker.address}"
    for check in broker.report.checks if broker.report is not None else ():
        if check.fault is not None:
            text = f"{broker.label} is not {check.name}: {check.fault.removesuffix('.')}."
            fields: FindingFields = {"broker": broker.label, "reason": check.fault.removesuffix(".")}
            yield Finding("critical", f"not-{check.name}", broker.name, text, show, fields=fields)
    ratio = broker.figures.disk_used_ratio if broker.figures is not None else None
    if ratio is None:
        text = f"{broker.label} does not report how full its disk is."
        yield Finding("warning", "disk-unknown", broker.name, text, show, fields={"broker": broker.label})
    else:
        yield from _of_disk(broker, ratio)
    if broker.report is not None:
        yield from _of_counters(broker)
    skew = broker.clock_skew_ms
    if skew is not None and abs(skew) > CLOCK_SKEW_MS_MAX:
        text = (
            f"The clock of {broker.label} is {abs(skew) / 1000:,.1f} s "
            f"{'ahead of' if skew > 0 else 'behind'} the clock here."
        )
        set_clock = "timedatectl set-ntp true"
        clock: FindingFields = {"broker": broker.label, "skew_ms": skew}
        yield Finding("warning", "clock-skew", broker.name, text, set_clock, fields=clock)


def _of_disk(broker: BrokerState, ratio: float) -> Iterator[Finding]:
    """Judges the use of the disk by the levels of the broker."""
    report, used_percent = broker.report, round(ratio * 100)
    refuse = (report and report.disk_refuse_percent) or APACHE_REFUSE_PERCENT
    clean = (report and report.disk_clean_percent) or APACHE_CLEAN_PERCENT
    if used_percent < min(clean, refuse):
        return
    is_full = used_percent >= refuse
    effect = "it refuses messages" if is_full else "it deletes old messages early"
    level = ""
    if report is not None and report.disk_refuse_percent is not None:
        level = f" (disk_refuse_percent={refuse})" if is_full else f" (disk_clean_percent={clean})"
    yield Finding(
        "critical" if is_full else "warning",
        "disk-full" if is_full else "disk-high",
        broker.name,
        f"The disk of {broker.label} is {ratio:.0%} full, so {effect}{level}.",
        _room_command(broker, used_percent, is_full=is_full),
        fields={"broker": broker.label, "used_ratio": ratio},
    )


def _room_command(broker: BrokerState, used_percent: int, *, is_full: bool) -> str:
    """Returns the command that makes room: a full disk with some space left takes messages again at once; on
    any other one, files are deleted earlier."""
    target = broker.name if broker.is_master else broker.address
    report = broker.report
    if report is None or report.disk_refuse_percent is None:
        return f"metaq config set {target} fileReservedTime=24"
    if is_full and used_percent + 2 <= LEVEL_PERCENT_MAX:
        return f"metaq config set {target} disk_refuse_percent={used_percent + 2}"
    hours = max((report.retention_ms or 0) // HOUR_MS // 2, 1)
    return f"metaq config set {target} file_reserved_hours={hours}"


def _of_counters(broker: BrokerState) -> Iterator[Finding]:
    report = broker.report
    assert report is not None
    since_ms = broker.figures.started_ms if broker.figures is not None else None
    if broker.is_master and report.permission is not None and not report.permission & WRITE:
        text = f"{broker.label} takes no messages, because its permission is {report.permission}."
        command = f"metaq cluster config set {broker.name} brokerPermission={READ | WRITE}"
        fields: FindingFields = {"broker": broker.label, "permission": report.permission}
        yield Finding("critical", "not-permitted", broker.name, text, command, fields=fields)
    yield from of_damage(broker, report, since_ms)
    if report.set_aside:
        text = (
            f"{broker.label} has left out {report.set_aside:,} topics, groups or offsets that it could not "
            "read; they are in the folder set-aside of its data directory."
        )
        fields = {"broker": broker.label, "entries": report.set_aside}
        yield Finding(
            "warning", "set-aside", broker.name, text, "metaq cluster support-bundle", fields=fields
        )
    if report.sends_over_limit:
        text = (
            f"{broker.label} has refused {report.sends_over_limit:,} messages "
            "because producers exceeded the limits of their topics."
        )
        fields = {"broker": broker.label, "messages": report.sends_over_limit}
        yield Finding("warning", "sends-over-limit", broker.name, text, "metaq topic list", since_ms, fields)
    if report.connections_cut:
        text = f"{broker.label} has cut {report.connections_cut:,} connections that took too much memory."
        command = f"metaq cluster connections {broker.name}"
        fields = {"broker": broker.label, "connections": report.connections_cut}
        yield Finding("warning", "connections-cut", broker.name, text, command, since_ms, fields)
    if report.limits_waiting:
        text = f"On {broker.label}, {report.limits_waiting:,} requests wait for a limit of a topic or group."
        fields = {"broker": broker.label, "requests": report.limits_waiting}
        yield Finding("info", "limits-waiting", broker.name, text, "metaq topic list", fields=fields)


def _of_versions(state: ClusterState) -> Iterator[Finding]:
    versions = {
        f"MetaQ {broker.report.version}" if broker.report else f"RocketMQ {broker.figures.version}"
        for broker in state.brokers
        if broker.figures is not None and (broker.report or broker.figures.version)
    }
    if len(versions) > 1:
        named = ", ".join(sorted(versions))
        text = f"The brokers have different versions: {named}."
        fields: FindingFields = {"versions": named}
        yield Finding("info", "version-mix", "brokers", text, "metaq cluster status", fields=fields)


def _of_unknown(state: ClusterState) -> Iterator[Finding]:
    for broker in state.brokers:
        if broker.error is None and broker.unknown:
            named = ", ".join(broker.unknown)
            text = f"{broker.label} does not report {named}."
            fields: FindingFields = {"broker": broker.label, "facts": named}
            yield Finding("info", "facts-unknown", broker.name, text, "metaq group list", fields=fields)


def is_loopback(address: str) -> bool:
    """Returns whether only this machine can reach the address."""
    host = address.rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")
