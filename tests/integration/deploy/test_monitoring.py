"""Boards and alerts, asked of a real Prometheus that scrapes real brokers and a pipeline."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import metaq
from metaq.pipelines import Progress
from metaq.pipelines.metrics_page import PipelineMetrics, served
from tests.support.metaq import COMMAND, Metaq
from tests.support.processes import Child, find_tool, free_port
from tests.support.prometheus import PACKAGE, Prometheus
from tests.support.waiting import eventually, wait_until

ROOT = Path(__file__).resolve().parents[3]
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
ALERTS = ROOT / "deploy" / "prometheus" / "metaq-alerts.yaml"
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
SCRAPE_INTERVAL = "500ms"
LOOK_INTERVAL_S = 0.3
VARIABLES = {
    "$__rate_interval": "10s",
    "$cluster": ".*",
    "$instance": ".*",
    "$pipeline": ".*",
    "$config": ".*",
}
METRIC = re.compile(r"\b(?:metaq|rocketmq)_\w+")
SELECTOR = re.compile(r"\b(?:(?:metaq|rocketmq)_\w+|up)\b(?:\{[^}]*\})?")


class Site:
    """A fixed pair of brokers, a broker without a name server, a pipeline, and a Prometheus."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home, self._stack = home, stack
        self.names = self._start("nameserver", "--listen", "127.0.0.1:0")
        known = ("--namesrv", self.names.nameserver, "--set", "metrics_listen=127.0.0.1:0")
        pair = ("broker", "--name", "pair", "--listen", "127.0.0.1:0", *known)
        self.master = self._start(
            *(*pair, "--id", "0", "--replica-ids", "1", "--data", "master"),
            *("--replication-listen", "127.0.0.1:0"),
        )
        self.replica = self._start(
            *(*pair, "--id", "1", "--master", self.master.ready["replication"], "--data", "replica"),
            *("--replication-listen", "127.0.0.1:0"),
        )
        self.lonely = self._start(
            *("broker", "--name", "lonely", "--listen", "127.0.0.1:0", "--data", "lonely"),
            *("--namesrv", f"127.0.0.1:{free_port()}", "--set", "metrics_listen=127.0.0.1:0"),
        )
        self.pipeline = PipelineMetrics("log-lake", Path("logs.toml"))
        pipeline = stack.enter_context(served(self.pipeline, "127.0.0.1", 0))
        agent = self._follow_log()
        brokers = [role.ready["metrics"] for role in (self.master, self.replica, self.lonely)]
        self.prometheus = Prometheus(
            home, self._config({"metaq-brokers": brokers, "metaq-pipelines": [pipeline, agent]})
        )
        stack.callback(self.prometheus.stop)

    def _start(self, *arguments: str) -> Metaq:
        role = Metaq(*arguments, home=self._home)
        self._stack.callback(lambda: role.stop() if role.child.alive else None)
        return role

    def _follow_log(self) -> str:
        """Starts a pipeline that sends a file; returns the address of its metrics."""
        (self._home / "agent.log").write_text("one line\n")
        config = self._home / "agent.toml"
        config.write_text(
            f'[files]\npaths = ["agent.log"]\n[topic]\nnamesrv = "{self.names.nameserver}"\nname = "Lines"\n'
        )
        agent = Child(
            [
                *(*COMMAND, "pipeline", "run", "log-transport", "--config", str(config)),
                *("--metrics-listen", "127.0.0.1:0"),
            ],
            self._home / "agent-output.txt",
        )
        self._stack.callback(agent.stop)
        return agent.wait_for(
            lambda text: found[1] if (found := re.search(r"metrics at http://(\S+)/metrics", text)) else None,
            60,
            "address of the metrics",
        )

    def _config(self, targets: dict[str, list[str]]) -> Path:
        """Writes the sample configuration with these targets and short intervals. Rules fire at once."""
        rules = yaml.safe_load(ALERTS.read_text())
        for rule in all_rules(rules):
            rule.pop("for", None)
        (self._home / ALERTS.name).write_text(yaml.safe_dump(rules))
        config = yaml.safe_load(CONFIG.read_text())
        config["global"] = {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets.pop(job["job_name"])}]
        assert not targets
        path = self._home / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def report(self, rows: int) -> None:
        """Reports progress as a pipeline on Spark does."""
        details: dict[str, object] = {"messages_left": 5, "batches": rows, "quarantined": 0, "retries": 0}
        self.pipeline.report(Progress("running", rows, rows * 10, 0.5, 1.0, 0.25, 0, details))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path_factory.mktemp("site"), stack)


@pytest.fixture(scope="module")
def busy(site: Site) -> Iterator[Site]:
    """The site under traffic of every kind; consumers stay connected."""
    with metaq.Client(site.names.nameserver) as client, client.producer("shop") as producer:
        site.report(1)

        @producer.check
        def is_paid(message: metaq.Message) -> bool:
            return True

        def send() -> None:
            producer.send("Orders", b"order")
            with producer.transaction("Orders", b"paid"):
                pass

        send()
        producer.send("Orders", b"later", delay=3600)
        with pytest.raises(LookupError), producer.transaction("Orders", b"unpaid"):
            raise LookupError("no stock")
        received: list[metaq.Message] = []

        @client.consumer("Orders", group="packers", start="earliest")
        def pack(message: metaq.Message) -> None:
            received.append(message)

        client.start()
        wait_until(lambda: len(received) >= 2, what="consumed")
        scrapes = 'count_over_time(metaq_requests_total{node_id="pair"}[1m])'
        before = 1 + max(
            [float(series["value"][1]) for series in site.prometheus.query(scrapes)], default=0.0
        )
        # Rates need values that change between two scrapes.
        for number in range(2, 5):
            send()
            site.report(number)
            wait_until(
                lambda seen=before + number: any(
                    float(series["value"][1]) >= seen for series in site.prometheus.query(scrapes)
                ),
                what="scraped",
                interval_s=LOOK_INTERVAL_S,
            )
        yield site


def all_rules(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels(board: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(board.read_text())["panels"] if panel["type"] != "row"]


def filled(expression: str) -> str:
    """Replaces Grafana's variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_board_finds_series(busy: Site, board: Path) -> None:
    queries = [filled(target["expr"]) for panel in panels(board) for target in panel["targets"]]
    assert len(queries) > 10

    def empty() -> list[str]:
        return [query for query in queries if not busy.prometheus.query(query)]

    assert eventually(empty, lambda found: not found, 30, "answered", interval_s=LOOK_INTERVAL_S) == []
    names = {name for query in queries for name in METRIC.findall(query)}
    assert [name for name in names if not busy.prometheus.query(name)] == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_variables_of_a_board_find_values(busy: Site, board: Path) -> None:
    for variable in json.loads(board.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found is not None
            series = busy.prometheus.query(filled(found[1]))
            assert series and all(found[2] in one["metric"] for one in series), variable["name"]


def test_a_pipeline_shows_its_progress(busy: Site) -> None:
    rows = 'metaq_pipeline_rows_total{pipeline="log-transport",config="agent"}'
    wait_until(
        lambda: [series["value"][1] for series in busy.prometheus.query(rows)] == ["1"],
        what="one line counted",
        interval_s=LOOK_INTERVAL_S,
    )
    assert busy.prometheus.query('metaq_pipeline_lag_bytes{pipeline="log-transport"}')


def test_every_alert_looks_at_series_that_exist(busy: Site) -> None:
    missing = []
    for rule in all_rules(yaml.safe_load(ALERTS.read_text())):
        busy.prometheus.query(rule["expr"])
        assert METRIC.search(rule["expr"]) or rule["expr"].startswith("up")
        # A rule without a fault returns nothing, so its parts are asked.
        selectors = SELECTOR.findall(rule["expr"])
        missing += [
            (rule["alert"], selector) for selector in selectors if not busy.prometheus.query(selector)
        ]
    assert missing == []


def test_alerts_fire_when_a_broker_is_lost(busy: Site) -> None:
    """The last test of this module: it kills the replica."""

    def instances(name: str) -> set[str]:
        return {labels["instance"] for labels in busy.prometheus.alerts().get(name, [])}

    lonely, replica = busy.lonely.ready["metrics"], busy.replica.ready["metrics"]
    fires = {"MetaqBrokerNotReady": lonely}
    wait_until(
        lambda: all(where in instances(name) for name, where in fires.items()),
        what=f"{fires} fire",
        interval_s=LOOK_INTERVAL_S,
    )
    assert "MetaqTooFewInSync" not in busy.prometheus.alerts()
    assert replica not in instances("MetaqBrokerDown")
    busy.replica.kill()
    fires |= {"MetaqBrokerDown": replica, "MetaqTooFewInSync": busy.master.ready["metrics"]}
    wait_until(
        lambda: all(where in instances(name) for name, where in fires.items()),
        what=f"{fires} fire",
        interval_s=LOOK_INTERVAL_S,
    )


def test_alerts_wait_as_long_as_they_say() -> None:
    """promtool evaluates the rules over hours of invented series."""
    done = subprocess.run(
        [find_tool("promtool", PACKAGE), "test", "rules", str(Path(__file__).with_name("alerts.test.yaml"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("rules", ALERTS), ("config", CONFIG)], ids=lambda found: found[0])
def test_promtool_finds_nothing(arguments: tuple[str, Path]) -> None:
    done = subprocess.run(
        [find_tool("promtool", PACKAGE), "check", arguments[0], str(arguments[1])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "FAILED" in done.stdout + done.stderr) == (0, False), done.stderr
