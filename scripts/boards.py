"""Writes the Grafana boards in deploy/grafana from the panels in board_panels.py.

    scripts/boards.py [--check]

A panel is one line: a title, a unit, and queries with the legend of their series. With `--check`, nothing is
written, and the exit code is 1 if a board differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from board_panels import BROKER_ROWS, CLUSTER, CLUSTER_ROWS, PIPELINE_ROWS, Panel

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
SCHEMA_VERSION = 38
"""The schema of Grafana 10; later versions convert it when they load a board."""
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def variable(name: str, query: str) -> dict[str, Any]:
    """A list of label values to choose from; all of them at first."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def board(
    uid: str, title: str, variables: list[dict[str, Any]], rows: dict[str, list[Panel]]
) -> dict[str, Any]:
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["metaq"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{"type": "dashboards", "title": "MetaQ", "tags": ["metaq"], "asDropdown": True}],
        "templating": {"list": [datasource, *variables]},
        "annotations": {"list": []},
        "panels": placed(rows),
    }


def placed(rows: dict[str, list[Panel]]) -> list[dict[str, Any]]:
    """Numbers the panels and puts them side by side, each row under its title."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, members in rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            }
        )
        x, y = 0, y + 1
        for member in members:
            width, height = member.size
            if x + width > COLUMNS:
                x, y = 0, y + height
            panels.append(drawn(member, len(panels) + 1, {"x": x, "y": y, "w": width, "h": height}))
            x += width
        y += members[-1].size[1]
    return panels


def drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.warn_at == 0:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": 1}]
    elif panel.warn_at is not None:
        steps.append({"color": "red", "value": panel.warn_at})
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                # A gap is drawn as a gap.
                **({"custom": {"spanNulls": False, "fillOpacity": 8}} if panel.kind == "timeseries" else {}),
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "instant": panel.kind == "stat",
                "range": panel.kind != "stat",
            }
            for position, (expression, legend) in enumerate(panel.queries)
        ],
    }


def boards() -> dict[str, dict[str, Any]]:
    """Returns every board by the name of its file."""
    cluster = variable("cluster", "label_values(metaq_broker_is_master, cluster)")
    instance = variable("instance", f"label_values(metaq_broker_is_master{{{CLUSTER}}}, instance)")
    pipeline = variable("pipeline", "label_values(metaq_pipeline_rows_total, pipeline)")
    config = variable("config", 'label_values(metaq_pipeline_rows_total{pipeline=~"$pipeline"}, config)')
    return {
        "broker.json": board("metaq-broker", "MetaQ broker", [cluster, instance], BROKER_ROWS),
        "cluster.json": board("metaq-cluster", "MetaQ cluster", [cluster], CLUSTER_ROWS),
        "pipelines.json": board("metaq-pipelines", "MetaQ pipelines", [pipeline, config], PIPELINE_ROWS),
    }


def main() -> int:
    different = []
    for name, made in boards().items():
        file, text = FOLDER / name, json.dumps(made, indent=2, ensure_ascii=False) + "\n"
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        different.append(name)
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
    if different and "--check" in sys.argv[1:]:
        print(f"run make docs: {', '.join(different)} differ from scripts/boards.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
