"""The Grafana boards are what their tables say, and work with any Prometheus and any broker."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import SCRIPTS

ROOT = SCRIPTS.parent
BOARDS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana").glob("*.json")}
KINDS = {"row", "stat", "timeseries"}


def test_boards_are_those_of_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "boards.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(BOARDS) == {"broker", "cluster", "pipelines"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_different_ids_and_places(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert {panel["type"] for panel in panels} == KINDS
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
    for one, other in itertools.combinations(panels, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


@pytest.mark.parametrize("name", BOARDS)
def test_nothing_names_a_data_source_or_an_instance(name: str) -> None:
    board = BOARDS[name]
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            assert (
                target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            )
            assert not re.search(r"\d+\.\d+\.\d+\.\d+|localhost|:\d{4}", expression), expression
            for label, value in re.findall(
                r'(cluster|instance|node_id|job|pipeline|config)=~?"([^"]*)"', expression
            ):
                assert value == f"${label}", expression
            used = set(re.findall(r"\$(\w+)", expression)) - {"__rate_interval"}
            assert used and used <= variables.keys(), expression
            assert legend_labels(target) <= {"instance", *re.findall(r"\w+", expression)}, target[
                "legendFormat"
            ]


def legend_labels(target: dict[str, Any]) -> set[str]:
    # A series that nothing has summed up keeps all of its labels.
    if " by (" not in target["expr"]:
        return set()
    return set(re.findall(r"{{(\w+)}}", target["legendFormat"]))


def test_a_board_that_differs_is_found(tmp_path: Path) -> None:
    for script in ("boards.py", "board_panels.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "scripts" / script).write_text((SCRIPTS / script).read_text())
    (tmp_path / "deploy" / "grafana").mkdir(parents=True)
    command = [sys.executable, str(tmp_path / "scripts" / "boards.py")]
    checked = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 1 and "run make docs" in checked.stderr
    assert list((tmp_path / "deploy" / "grafana").iterdir()) == []
    assert subprocess.run(command, timeout=60).returncode == 0
    assert len(list((tmp_path / "deploy" / "grafana").iterdir())) == 3
