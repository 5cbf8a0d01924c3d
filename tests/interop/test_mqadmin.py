"""Apache's own mqadmin against our servers, command by command."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import metaq
from metaq.cli import app
from tests.interop.clients import Clients, unique
from tests.interop.conftest import Tail, shown
from tests.interop.driver import Driver
from tests.interop.mqadmin import NOT_TRIED, REFUSED, WORKING, Trial
from tests.interop.programs import start_java
from tests.support.servers import Cluster, start_one_process, uses_apache
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(uses_apache(), reason="what these print is asserted of MetaQ")
WAITING = 4_000


@dataclass
class Stage:
    """Servers, a topic with messages, a running consumer, a stopped group, and the tool."""

    driver: Driver
    cluster: Cluster
    names: dict[str, str]

    def run(self, trial: Trial) -> dict[str, Any]:
        arguments = [part.format(**self.names) for part in trial.line.split()]
        outcome: dict[str, Any] = self.driver.call(
            "mqadmin",
            arguments=[*arguments, "-n", self.cluster.namesrv],
            time_limit_ms=trial.time_limit_ms,
        )
        return outcome

    def pattern(self, text: str) -> str:
        return text.format(**{key: re.escape(name) for key, name in self.names.items()})


@pytest.fixture(scope="module")
def mqadmin(tmp_path_factory: pytest.TempPathFactory, tails: list[Tail]) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("mqadmin")
    with (
        shown(tails, start_one_process(home)) as cluster,
        shown(tails, start_java("5.5.0", "json", home / "java")) as driver,
    ):
        clients = Clients(driver, cluster)
        yield Stage(driver, cluster, prepare(clients, home))
        clients.close()


def prepare(clients: Clients, home: Path) -> dict[str, str]:
    names = {key: unique(key) for key in ("group", "stopped", "reader", "doomed", "fresh", "producers")}
    names |= {"topic": clients.topic(queues=4), "spare": clients.topic(queues=4)}
    names |= {"namesrv": clients.cluster.namesrv, "broker": clients.cluster.brokers["broker-a"].address}
    names["home"] = str(home)
    # Brokers know a producer by its heartbeats.
    producer = clients.producer(group=names["producers"], heartbeat_interval_ms=1_000)
    messages = [{"body": f"m{number}", "keys": f"k{number}", "tags": "A"} for number in range(20)]
    sent = []
    for number, message in enumerate(messages):
        queue = {"broker": "broker-a", "queue_id": (number + 1) % 4}
        sent += producer.send(names["topic"], [{**message, **queue}], how="queue")
    names |= {"offset_id": sent[0]["offset_id"], "unique_id": sent[0]["id"], "third_id": sent[3]["id"]}
    consumer = clients.push_consumer(names["topic"], group=names["group"])
    consumer.wait_until_consumed(names["topic"], len(sent))
    names["client"] = str(consumer.client_id)
    (home / "topics.json").write_text(
        json.dumps([{"topicName": unique("L"), "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}])
    )
    (home / "groups.json").write_text(json.dumps([{"groupName": unique("L")}]))
    names["traced_id"] = traced(clients, names)
    # A new client reports its first offsets after ten seconds.
    wait_for_progress(clients, names["group"], names["topic"], (5, 5, 5, 5))
    for line in (
        f"updateSubGroup -b {names['broker']} -g {names['stopped']}",
        f"updateSubGroup -b {names['broker']} -g {names['doomed']}",
        f"updateTopic -b {names['broker']} -t {names['doomed']}",
        f"cloneGroupOffset -s {names['group']} -d {names['stopped']} -t {names['topic']}",
        f"updateOrderConf -t {names['topic']} -v broker-a:4 -m put",
    ):
        clients.driver.call("mqadmin", arguments=[*line.split(), "-n", names["namesrv"]])
    return names


def wait_for_progress(clients: Clients, group: str, topic: str, wanted: tuple[int, ...]) -> None:
    """Waits until the broker has these offsets. A reader in the group would take queues from its consumer."""
    line = f"consumerProgress -g {group} -n {clients.cluster.namesrv}"
    pattern = rf"(?m)^{topic} +broker-a +\d+ +\d+ +(\d+) "

    def committed() -> tuple[int, ...]:
        printed = clients.driver.call("mqadmin", arguments=line.split())["printed"]
        return tuple(map(int, re.findall(pattern, printed)))

    eventually(committed, lambda found: found == wanted, 90, f"committed at {wanted}")


def traced(clients: Clients, names: dict[str, str]) -> str:
    """Sends a traced message and waits until its trace is stored."""
    line = f"sendMessage -t {names['spare']} -p traced -m true -n {names['namesrv']}"
    printed: str = clients.driver.call("mqadmin", arguments=line.split())["printed"]
    message_id = printed.split()[-1]
    query = f"queryMsgTraceById -i {message_id} -n {names['namesrv']}"
    eventually(
        lambda: clients.driver.call("mqadmin", arguments=query.split())["printed"],
        lambda found: "Pub" in found,
        90,
        "a trace",
    )
    return message_id


@pytest.mark.parametrize("trial", WORKING, ids=lambda trial: trial.line)
def test_command_works(mqadmin: Stage, trial: Trial) -> None:
    outcome = mqadmin.run(trial)
    printed = outcome["printed"]
    for pattern in trial.prints:
        assert re.search(mqadmin.pattern(pattern), printed), f"{pattern!r} is not in:\n{printed}\n{outcome}"
    if not trial.endless:
        assert outcome["ended"]
        assert outcome["complained"] == ""


@pytest.mark.parametrize("trial", REFUSED, ids=lambda trial: trial.line)
def test_command_that_cannot_apply_says_why(mqadmin: Stage, trial: Trial) -> None:
    outcome = mqadmin.run(trial)
    said = outcome["printed"] + outcome["complained"]
    if trial.swallowed:
        assert re.search(r"broker-a\]? +error", said), said
        return
    assert f"request code {trial.refused} is not supported: {trial.reason}" in said, said
    assert "CODE: 3" in said


def test_every_command_is_tried(mqadmin: Stage) -> None:
    printed = mqadmin.driver.call("mqadmin", arguments=[])["printed"]
    known = set(re.findall(r"(?m)^   (\w+) ", printed))
    tried = {trial.command for trial in (*WORKING, *REFUSED)}
    assert known == tried | set(NOT_TRIED)


def test_metaq_prints_the_same_facts(mqadmin: Stage) -> None:
    def of_metaq(*arguments: str) -> Any:
        outcome = CliRunner().invoke(app, [*arguments, "--namesrv", mqadmin.cluster.namesrv, "-o", "json"])
        assert outcome.exit_code == 0, outcome.output
        return json.loads(outcome.stdout)

    [broker] = of_metaq("cluster", "status")["brokers"]
    row = mqadmin.run(Trial("clusterList"))["printed"].splitlines()[1].split()
    version = f"V{broker['version'].replace('.', '_')}"
    assert row[:5] == [broker["cluster"], broker["name"], str(broker["id"]), broker["address"], version]
    status = mqadmin.run(Trial("brokerStatus -b {broker}"))["printed"]
    figures = dict(re.findall(r"(?m)^(\w+) +: (.*?) *$", status))
    assert int(figures["bootTimestamp"]) == broker["started_ms"]
    assert float(figures["commitLogDiskRatio"]) == pytest.approx(broker["disk_used_ratio"], abs=0.02)

    printed = mqadmin.run(Trial("getBrokerConfig -b {broker}"))["printed"]
    shown = dict(re.findall(r"(?m)^(\w+) += +(.*?) *$", printed))
    asked = of_metaq("config", "get", "broker-a", *shown)
    assert shown == {row["key"]: row["value"] for row in asked}

    clients = {(row["kind"], row["group"]): row for row in of_metaq("cluster", "connections")}
    printed = mqadmin.run(Trial("consumerConnection -g {group}"))["printed"]
    consumer = clients["consumer", mqadmin.names["group"]]
    assert re.search(rf"{re.escape(consumer['client_id'])} +{consumer['address']} +JAVA +V5_5_0", printed)
    assert (consumer["language"], consumer["version"]) == ("JAVA", "5.5.0")
    printed = mqadmin.run(Trial("producer -b {broker}"))["printed"]
    producer = clients["producer", mqadmin.names["producers"]]
    assert mqadmin.names["producers"] in printed and producer["client_id"] in printed


def test_exported_metadata_is_ours(mqadmin: Stage) -> None:
    mqadmin.run(Trial("exportMetadata -c DefaultCluster -f {home}/checked"))
    exported = json.loads((Path(mqadmin.names["home"]) / "checked" / "metadata.json").read_text())
    assert mqadmin.names["topic"] in exported["topicConfigTable"]
    assert mqadmin.names["group"] in exported["subscriptionGroupTable"]


def test_busy_groups_follow_the_tools(mqadmin: Stage) -> None:
    """A Java and a Python consumer are far behind and slow. The tools take them to the end and back."""
    clients = Clients(mqadmin.driver, mqadmin.cluster)
    topic, by_java, by_python = clients.topic(queues=4), unique("J"), unique("P")
    seen: list[str] = []

    def handle(message: metaq.Message) -> None:
        time.sleep(0.01)
        seen.append(message.body.decode())

    def fill(*bodies: str) -> None:
        with python.producer() as producer:
            for body in bodies:
                for queue_id in range(4):
                    queue = metaq.Queue(topic, "broker-a", queue_id)
                    producer.send_soon(topic, body.encode(), queue=queue)

    def run(line: str) -> None:
        arguments = [*line.split(), "-n", mqadmin.cluster.namesrv]
        assert mqadmin.driver.call("mqadmin", arguments=arguments)["complained"] == ""

    with metaq.Client(mqadmin.cluster.namesrv) as python:
        fill(*(f"old{number}" for number in range(WAITING // 4)))
        consumer = clients.push_consumer(topic, group=by_java, pause_ms=40)
        python.consumer(topic, group=by_python, start="earliest", concurrency=2)(handle)
        eventually(lambda: len(consumer.messages) > 20 and len(seen) > 20, bool, 60, "both at work")
        for group in (by_java, by_python):
            run(f"skipAccumulatedMessage -g {group} -t {topic} -f true")
        fill("late")

        def got_late() -> bool:
            by_body = [Counter(seen), Counter(message["body"] for message in consumer.messages)]
            return all(counter["late"] >= 4 for counter in by_body)

        # The Java client waits ten seconds before it goes there.
        eventually(got_late, bool, 90, "the messages after the backlog")
        assert len(seen) < WAITING / 2
        assert len(consumer.messages) < WAITING / 2
        for group in (by_java, by_python):
            wait_for_progress(clients, group, topic, (WAITING // 4 + 1,) * 4)

        again = len(seen)
        run(f"resetOffsetByTime -g {by_python} -t {topic} -s 0")
        eventually(lambda: "old0" in seen[again:], bool, 60, "at the first message again")
    clients.close()
