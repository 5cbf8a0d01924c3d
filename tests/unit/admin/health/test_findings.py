"""The judgement of a cluster's health: each fault is a finding, and nothing unknown passes for healthy."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from metaq.admin.health.findings import judge, summarize
from metaq.admin.health.state import BrokerState, ClusterState, StuckMember
from metaq.admin.results import BrokerFigures, NameServer
from metaq.protocol.bodies import HaReplica
from metaq.protocol.commands.health import (
    Backlog,
    BrokerReport,
    CheckReport,
    Conflict,
    DamagedMessage,
    DeadLetterCount,
)
from metaq.protocol.commands.replication import GroupStatus, NodeStatus

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
FIGURES = BrokerFigures("h:1", "5.5.0", NOW_MS - HOUR_MS, 0, 0, 0.0, 0.0, 0.5, None)
REPORT = BrokerReport(
    version="0.1.0",
    now_ms=NOW_MS,
    checks=(CheckReport("registered"), CheckReport("writable")),
    retention_ms=72 * HOUR_MS,
    permission=6,
)
BROKER = BrokerState("broker-a", "C", 0, "h:1", kind="metaq", figures=FIGURES, report=REPORT)
HEALTHY = ClusterState(NOW_MS, (NameServer("n:1"),), brokers=(BROKER,))


def kinds(state: ClusterState) -> list[tuple[str, str]]:
    return [(finding.severity, finding.kind) for finding in judge(state)]


def with_broker(**changes: object) -> ClusterState:
    return replace(HEALTHY, brokers=(replace(BROKER, **changes),))  # type: ignore[arg-type]


def test_a_healthy_cluster_has_no_findings() -> None:
    assert judge(HEALTHY) == ()
    assert summarize((), 1) == "Healthy: 1 broker answers."
    assert summarize((), 3) == "Healthy: 3 brokers answer."


def test_every_finding_has_a_sentence_and_a_command() -> None:
    report = BrokerReport(
        version="0.2.0",
        now_ms=NOW_MS,
        checks=(CheckReport("writable", "the disk is full."),),
        permission=4,
        damaged_records=2,
        set_aside=1,
        sends_over_limit=3,
        limits_waiting=4,
        connections_cut=5,
        conflicts=(Conflict("g", "T", ("*", "a")),),
        is_complete=False,
    )
    ill = replace(
        BROKER,
        report=report,
        figures=replace(FIGURES, disk_used_ratio=0.95),
        clock_skew_ms=-5_000,
        backlogs=(Backlog("g", "T", 1, 90 * 60_000, 1),),
        dead_letters=(DeadLetterCount("g", 1, NOW_MS),),
        unknown=("something",),
    )
    gone = BrokerState("broker-b", "C", 0, "h:2", error="h:2: no route to host; is it up?")
    servers = (NameServer("n:1"), NameServer("n:2", "n:2: Connect call failed ('n', 2)"))
    found = judge(replace(HEALTHY, name_servers=servers, brokers=(ill, gone)))
    assert [finding.severity for finding in found] == sorted(
        (finding.severity for finding in found), key=["critical", "warning", "info"].index
    )
    assert {finding.kind for finding in found} == {
        *("name-server-unreachable", "broker-unreachable", "not-writable", "not-permitted", "disk-full"),
        *(
            "damaged-records",
            "set-aside",
            "sends-over-limit",
            "limits-waiting",
            "connections-cut",
            "clock-skew",
        ),
        *("subscription-conflict", "consumers-behind", "dead-letters", "groups-unknown", "facts-unknown"),
    }
    for finding in found:
        assert finding.text.endswith(".") and finding.text.count(". ") == 0 and finding.subject, finding
        assert finding.command.split()[0] in ("metaq", "timedatectl"), finding
    assert "h:2: no route to host." in next(f.text for f in found if f.kind == "broker-unreachable")


def test_damaged_messages_are_named() -> None:
    damaged = [DamagedMessage("t", 1, offset, False) for offset in (9, 4, 3, 5)]
    damaged += [DamagedMessage("a", 0, 7, True)]
    damaged += [DamagedMessage("z", queue_id, 0, True) for queue_id in range(5)]
    report = replace_report(damaged_records=10, damaged=tuple(damaged))
    (finding,) = judge(with_broker(report=report))
    assert finding.text == (
        "broker-a found 10 damaged records in its store: topic a, queue 0, offsets 7 (left out); "
        "topic t, queue 1, offsets 3-5, 9 (readers wait); topic z, queue 0, offsets 0 (left out); "
        "topic z, queue 1, offsets 0 (left out); topic z, queue 2, offsets 0 (left out); and 2 more queues."
    )


def replace_report(**changes: object) -> BrokerReport:
    return msgspec.structs.replace(REPORT, **changes)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.5, []), (0.8, [("warning", "disk-high")]), (0.9, [("critical", "disk-full")])],
)
def test_disks(ratio: float, expected: list[tuple[str, str]]) -> None:
    assert kinds(with_broker(figures=replace(FIGURES, disk_used_ratio=ratio))) == expected


@pytest.mark.parametrize(
    ("used", "clean", "refuse", "expected", "command"),
    [
        (91, 75, 97, "is 91% full, so it deletes old messages early (disk_clean_percent=75)", "hours=24"),
        (91, 92, 97, None, None),
        (97, 75, 97, "is 97% full, so it refuses messages (disk_refuse_percent=97)", "percent=99"),
        (99, 75, 97, "is 99% full, so it refuses messages (disk_refuse_percent=97)", "hours=24"),
        (50, 40, 45, "is 50% full, so it refuses messages (disk_refuse_percent=45)", "percent=52"),
    ],
)
def test_a_disk_is_judged_by_the_levels_of_its_broker(
    used: int, clean: int, refuse: int, expected: str | None, command: str | None
) -> None:
    report = replace_report(
        disk_clean_percent=clean, disk_refuse_percent=refuse, retention_ms=48 * 3_600_000, damaged=()
    )
    state = with_broker(report=report, figures=replace(FIGURES, disk_used_ratio=used / 100))
    found = [finding for finding in judge(state) if finding.kind.startswith("disk")]
    if expected is None or command is None:
        assert found == []
    else:
        assert expected in found[0].text
        assert found[0].command.startswith("metaq config set broker-a ") and found[0].command.endswith(
            command
        )


def test_an_unknown_disk_is_not_an_empty_one() -> None:
    assert kinds(with_broker(figures=replace(FIGURES, disk_used_ratio=None))) == [("warning", "disk-unknown")]


def test_name_servers() -> None:
    down = NameServer("n:1", "down")
    one_of_two = replace(HEALTHY, name_servers=(down, NameServer("n:2")))
    assert kinds(one_of_two) == [("warning", "name-server-unreachable")]
    none = ClusterState(NOW_MS, (down,))
    assert kinds(none) == [("critical", "name-server-unreachable")], "no broker is blamed"
    assert kinds(ClusterState(NOW_MS, (NameServer("n:1"),))) == [("critical", "no-brokers")]
    mistaken = judge(ClusterState(NOW_MS, (NameServer("h:1", "code 3"),), {"h:1": "n:1"}))
    assert [finding.text for finding in mistaken] == [
        "h:1 is a broker, not a name server; its name servers are n:1."
    ]
    assert mistaken[0].command == "metaq cluster status --namesrv 'n:1'"


def test_a_broker_that_advertises_loopback_to_other_machines() -> None:
    gone = BrokerState("broker-b", "C", 0, "127.0.0.1:10911", error="refused")
    far = replace(HEALTHY, name_servers=(NameServer("10.0.0.1:9876"),), brokers=(gone,))
    assert kinds(far) == [("critical", "loopback-advertised")]
    near = replace(HEALTHY, name_servers=(NameServer("127.0.0.1:9876"),), brokers=(gone,))
    assert kinds(near) == [("critical", "broker-unreachable")]


def test_a_broker_without_a_master() -> None:
    replica = replace(BROKER, id=1)
    assert kinds(replace(HEALTHY, brokers=(replica,))) == [("critical", "no-master")]


def node(number: int, state: str, **fields: int) -> NodeStatus:
    return NodeStatus(number, f"h:{number}", "master" if number == 1 else "replica", state, **fields)  # type: ignore[arg-type]


def group(*nodes: NodeStatus, in_sync: tuple[int, ...] = (1, 2), master: int = 1) -> ClusterState:
    status = GroupStatus("broker-a", 7, master, 2, in_sync, nodes)
    return replace(HEALTHY, groups=(status,))


def test_replicas_that_are_not_in_sync() -> None:
    assert judge(group(node(1, "in sync"), node(2, "in sync"))) == ()
    [behind] = judge(
        group(
            node(1, "in sync"),
            node(2, "in sync"),
            node(3, "catching up", lag_bytes=20 * 1024**2, lag_ms=2_000),
        )
    )
    assert (behind.severity, behind.since_ms) == ("critical", NOW_MS - 2_000)
    assert behind.text == "In broker-a, node 3 is catching up, 20 MiB behind."
    short = judge(group(node(1, "in sync"), node(2, "gone")))
    assert [finding.kind for finding in short] == ["node-gone", "too-few-in-sync"]
    assert "takes no messages, unless it has replicas=async: 1 of at least 2 nodes" in short[1].text
    assert "In broker-a, the master, node 1, does not answer at h:1." in [
        finding.text for finding in judge(group(node(1, "gone"), node(2, "in sync")))
    ]
    assert "no-master" in [f.kind for f in judge(group(node(1, "waiting"), node(2, "waiting"), master=0))]
    assert kinds(group(node(1, "in sync"), node(2, "in sync"), node(3, "leaving"))) == [
        ("info", "node-leaving")
    ]


def test_a_damaged_log_and_what_keeps_it_from_being_repaired() -> None:
    [found] = judge(group(node(1, "in sync"), node(2, "damaged", damaged_at=4_096)))
    assert (found.severity, found.kind) == ("critical", "node-damaged")
    assert found.text == "In broker-a, node 2 has a damaged log at 4096."
    stuck = NodeStatus(2, "h:2", "replica", "catching up", problem="its bytes differ from those of node 1")
    [found] = judge(group(node(1, "in sync"), stuck))
    assert found.text == "In broker-a, node 2 is catching up: its bytes differ from those of node 1."


def test_a_node_that_refuses_the_register() -> None:
    fault = "the register has version 5 (epoch 3) of the group, but this node has seen version 6 (epoch 3)"
    refusing = msgspec.structs.replace(node(2, "in sync"), register_fault=fault)
    [found] = judge(group(node(1, "in sync"), refusing))
    assert (found.severity, found.kind) == ("critical", "register-refused")
    assert found.text == f"In broker-a, node 2 refuses the record in the register: {fault}."
    assert found.command == "metaq cluster switch broker-a --to ID --force"


def test_the_command_for_a_node_that_is_gone_is_whole() -> None:
    found = judge(replace(group(node(1, "in sync"), node(2, "gone")), register="etcd://e:2379"))
    assert found[0].command == (
        "metaq broker --name broker-a --id 2 --data DIRECTORY --listen h:2 --register etcd://e:2379 "
        "--cluster-key KEY_FILE --namesrv 'n:1'"
    )
    fixed = group(node(0, "gone"), node(1, "in sync"), in_sync=(0, 1), master=0)
    assert "--id 0 --data DIRECTORY --listen h:0 --replica-ids 1 --cluster-key" in judge(fixed)[0].command
    fixed = group(node(0, "in sync"), node(1, "gone"), in_sync=(0, 1), master=0)
    assert "--id 1 --data DIRECTORY --listen h:1 --master MASTER_HOST" in judge(fixed)[0].command


def test_a_node_that_says_why_it_waits() -> None:
    [found] = judge(
        group(node(1, "in sync"), node(2, "in sync"), node(3, "waiting", problem="its log is foreign"))
    )
    assert found.text == "In broker-a, node 3 waits for a master to copy from: its log is foreign."


def test_two_nodes_with_one_id() -> None:
    [found] = judge(group(node(1, "in sync"), node(2, "in sync", same_id="h:9")))
    assert (found.severity, found.kind) == ("critical", "node-id-twice")
    assert "two nodes have the id 2: one at h:2 and one at h:9" in found.text


def test_a_slow_replica_is_named_with_its_time() -> None:
    def slow(*ack_ms: int | None) -> list[str]:
        replicas = [node(2 + place, "in sync", ack_ms=one) for place, one in enumerate(ack_ms)]
        state = group(node(1, "in sync"), *replicas, in_sync=tuple(range(1, 2 + len(ack_ms))))
        return [finding.text for finding in judge(state)]

    assert slow(2, 90) == slow(None, None) == []
    [text] = slow(3, 412)
    assert text == (
        "In broker-a, node 3 holds every message up: it acknowledges after 412 ms; the others take 3 ms at "
        "most. Look at its disk and its network."
    )
    assert slow(412) == [
        "In broker-a, node 2 holds every message up: it acknowledges after 412 ms. "
        "Look at its disk and its network."
    ]
    [text] = slow(200, 412)
    assert "node 3" in text


def test_replicas_of_an_apache_master() -> None:
    near, far = HaReplica(addr="h:2", in_sync=True), HaReplica(addr="h:3", diff=300 * 1024**2)
    apache = replace(BROKER, kind="rocketmq", report=None)
    replicas = [replace(apache, id=number, address=f"h:{number}") for number in (1, 2)]

    def kinds_of(*connected: HaReplica) -> list[str]:
        brokers = (replace(apache, apache_replicas=connected), *replicas)
        return [finding.kind for finding in judge(replace(HEALTHY, brokers=brokers))]

    assert kinds_of(near, near) == []
    assert kinds_of(near, far) == ["replica-behind"]
    assert kinds_of(near) == ["replica-not-connected"]


def test_a_node_of_a_group_is_reported_once() -> None:
    state = group(node(1, "in sync"), node(2, "gone"), in_sync=(1, 3))
    gone = BrokerState("broker-a", "C", 2, "h:2", error="refused")
    found = judge(replace(state, brokers=(BROKER, gone)))
    assert [finding.kind for finding in found] == ["node-gone"]


@pytest.mark.parametrize(
    ("backlog", "kind"),
    [
        (Backlog("g", "T", 5, 30_000, 0), None),
        (Backlog("g", "T", 5, 61_000, 0), "no-consumers"),
        (Backlog("g", "T", 5, None, 0), "no-consumers"),
        (Backlog("g", "T", 5, 61_000, 1), None),
        (Backlog("g", "T", 5, 11 * 60_000, 1), "consumers-behind"),
        (Backlog("g", "T", 5, 60 * HOUR_MS, 1), "backlog-expires"),
    ],
)
def test_backlogs(backlog: Backlog, kind: str | None) -> None:
    found = judge(with_broker(backlogs=(backlog,)))
    assert [finding.kind for finding in found] == ([kind] if kind else [])
    for finding in found:
        assert finding.command == "metaq group show g" and finding.severity == "warning"


def test_the_same_group_on_two_brokers_is_one_finding() -> None:
    one = replace(
        BROKER, backlogs=(Backlog("g", "T", 5, 700_000, 0),), dead_letters=(DeadLetterCount("g", 2, 7, 5),)
    )
    two = replace(
        one,
        name="b",
        backlogs=(Backlog("g", "T", 6, 900_000, 0),),
        dead_letters=(DeadLetterCount("g", 3, 9, 4),),
    )
    waiting, letters = judge(replace(HEALTHY, brokers=(one, two)))
    assert waiting.text == "11 messages wait for g in T, and no consumer is connected."
    assert waiting.since_ms == NOW_MS - 900_000
    assert letters.text == "g has 5 dead letters that were not sent again."
    assert (letters.command, letters.since_ms) == ("metaq dlq list g", 4), "since the oldest one"


def test_texts_of_others_do_not_reach_the_terminal_as_they_are() -> None:
    report = BrokerReport("0.1.0", NOW_MS, conflicts=(Conflict("g", "T", ("\x1b[2J", "*")),))
    [finding] = judge(with_broker(report=report))
    assert "\x1b" not in finding.text and "[2J" in finding.text


def test_different_versions() -> None:
    newer = replace(BROKER, name="b", report=BrokerReport("0.2.0", NOW_MS))
    apache = replace(BROKER, name="c", kind="rocketmq", report=None)
    [finding] = judge(replace(HEALTHY, brokers=(BROKER, newer, apache)))
    assert finding.text == "The brokers have different versions: MetaQ 0.1.0, MetaQ 0.2.0, RocketMQ 5.5.0."


def test_the_summary_names_the_first_reasons() -> None:
    gone = [BrokerState(f"b{number}", "C", 0, f"h:{number}", error="away") for number in range(4)]
    found = judge(replace(HEALTHY, brokers=tuple(gone)))
    assert summarize(found, 0) == (
        "Unhealthy: b0 does not answer at h:0: away; b1 does not answer at h:1: away; and 2 more."
    )
    warned = judge(with_broker(figures=replace(FIGURES, disk_used_ratio=0.8)))
    assert summarize(warned, 1) == (
        "Healthy: 1 broker answers, but the disk of broker-a is 80% full, so it deletes old messages early."
    )


def test_a_stuck_member_comes_before_backlogs_and_is_named() -> None:
    backlogs = (Backlog("g", "T", 5_000, 700_000, 1),)
    members = (
        StuckMember("g", "host@1", ("T", "U", "V"), 32, NOW_MS - 125_000),
        StuckMember("h", None, ("T",), None, NOW_MS - 61_000),
    )
    named, unnamed, behind = judge(replace(with_broker(backlogs=backlogs), stuck=members))
    assert named.text == (
        "host@1 holds 32 messages of T, U and 1 more for g and has committed nothing for 2 minutes."
    )
    assert (named.command, named.since_ms) == ("metaq group show g --stacks", NOW_MS - 125_000)
    assert unnamed.text == "A member holds messages of T for h and has committed nothing for 1 minute."
    assert behind.kind == "consumers-behind"


def test_backlogs_are_weighed_by_size_and_growth_and_abandoned_groups_are_one_finding() -> None:
    abandoned = tuple(Backlog(f"old{n}", "T", 2, 86_400_000 - n, 0, 0.0) for n in range(40))
    large = Backlog("large", "T", 90_000, 700_000, 3, -1.0)
    grows = Backlog("grows", "T", 2_000, 60_000, 0, 500.0)
    slow = Backlog("slow", "T", 3, 900_000, 1, 0.0)
    found = judge(with_broker(backlogs=(*abandoned, slow, large, grows)))
    assert [finding.subject for finding in found] == ["grows", "large", "slow", "old0"]
    assert [finding.severity for finding in found] == ["warning"] * 3 + ["info"]
    assert found[-1].text == (
        "40 groups without consumers have small backlogs of 80 messages in all: old0, old1, old2 and 37 more."
    )
    assert found[-1].command == "metaq group list"
