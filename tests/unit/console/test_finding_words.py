"""Findings in the reader's language."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaq.admin.health.findings import judge
from metaq.admin.health.results import Finding
from metaq.admin.health.state import BrokerState, ClusterState, StuckMember
from metaq.admin.results import BrokerFigures, NameServer
from metaq.console.finding_words import finding_sentence, finding_title
from metaq.protocol.bodies import HaReplica
from metaq.protocol.commands.health import Backlog, BrokerReport, CheckReport, Conflict, DeadLetterCount
from metaq.protocol.commands.replication import GroupStatus, NodeStatus

NOW_MS = 1_700_000_000_000
FIGURES = BrokerFigures("h:1", "5.5.0", NOW_MS, 0, 0, 0.0, 0.0, 0.95, None)
REPORT = BrokerReport(
    version="0.2.0",
    now_ms=NOW_MS,
    checks=(CheckReport("writable", "the disk is full."), CheckReport("registered", "no answer.")),
    permission=4,
    damaged_records=2,
    set_aside=1,
    sends_over_limit=3,
    limits_waiting=4,
    connections_cut=5,
    conflicts=(Conflict("g", "T", ("*", "a")),),
    is_complete=False,
)
ILL = BrokerState(
    "broker-a",
    "C",
    0,
    "h:1",
    kind="metaq",
    figures=FIGURES,
    report=REPORT,
    clock_skew_ms=-5_000,
    backlogs=(
        Backlog("g", "T", 1, 90 * 60_000, 1),
        Backlog("nightly-report", "orders", 3_872, 90_000, 0),
        *(Backlog(group, "orders", 2, 90_000, 0) for group in ("old", "older")),
    ),
    dead_letters=(DeadLetterCount("fraud-check", 1_280, NOW_MS),),
    unknown=("something",),
)
APACHE = BrokerState(
    "broker-b",
    "C",
    0,
    "h:3",
    kind="rocketmq",
    figures=replace(FIGURES, disk_used_ratio=None),
    apache_replicas=(HaReplica(addr="h:4", diff=1 << 30),),
)
GONE = BrokerState("broker-c", "C", 0, "h:2", error="h:2: no route to host; is it up?")
NODES = (
    NodeStatus(1, "h:1", "master", "gone"),
    NodeStatus(2, "h:2", "replica", "failed"),
    NodeStatus(3, "h:3", "replica", "catching up", 1 << 20, 1),
    NodeStatus(4, "h:4", "replica", "waiting"),
    NodeStatus(5, "h:5", "replica", "candidate"),
    NodeStatus(6, "h:6", "replica", "leaving"),
    NodeStatus(7, "h:7", "replica", "damaged", damaged_at=4_096),
)
GROUP = GroupStatus("broker-d", 7, 1, 2, (1,), NODES)
STATE = ClusterState(
    NOW_MS,
    (NameServer("n:1"), NameServer("n:2", "down"), NameServer("h:1", "code 3")),
    {"h:1": "n:1"},
    brokers=(ILL, APACHE, GONE),
    groups=(GROUP,),
    stuck=(
        StuckMember("billing", "host@1", ("orders",), 32, NOW_MS - 120_000),
        StuckMember("mail", None, ("orders",), None, NOW_MS - 120_000),
    ),
    notes=("a note",),
)
FOUND = judge(STATE)


@pytest.mark.parametrize("finding", FOUND, ids=[finding.kind for finding in FOUND])
def test_a_finding_has_a_chinese_sentence_with_its_names(finding: Finding) -> None:
    sentence = finding_sentence("zh", finding)
    assert sentence is not None and "{" not in sentence
    assert any("\u4e00" <= letter <= "\u9fff" for letter in sentence)
    assert finding_title("zh", finding) != "问题"
    assert finding_title("en", finding) != "Finding"
    assert finding_sentence("en", finding) == finding.text


def test_numbers_are_written_as_elsewhere() -> None:
    by_kind = {finding.kind: finding_sentence("zh", finding) for finding in FOUND}
    assert by_kind["no-consumers"] == "nightly-report 在 orders 堆积 3,872 条，且没有在线消费者"
    assert by_kind["consumers-behind"] == "g 在 T 堆积 1 条，最早的一条已等待 1 小时 30 分"
    assert by_kind["disk-full"] == "broker-a 的磁盘已使用 95 %，不再接收消息"
    assert by_kind["dead-letters"] == "fraud-check 有 1,280 条未重发的死信"
    assert by_kind["clock-skew"] == "broker-a 的时钟与本机相差 -5 秒（负数表示偏慢）"


def test_a_finding_without_a_sentence_stays_english() -> None:
    unheard = Finding("warning", "unheard-of", "x", "Something new.", "metaq doctor")
    assert finding_sentence("zh", unheard) is None
    assert finding_sentence("zh", replace(FOUND[0], fields={})) is None
    assert finding_title("zh", unheard) == "问题"
