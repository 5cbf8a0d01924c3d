"""A real Prometheus on a free loopback port, with its own data, and the answers of its HTTP interface."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.processes import Child, find_tool

PACKAGE = "prometheus, or run scripts/require.sh prometheus"
START_TIMEOUT_S = 60


class Prometheus:
    """Runs until `stop`."""

    def __init__(self, home: Path, config: Path) -> None:
        self.child = Child(
            [
                *(find_tool("prometheus", PACKAGE), f"--config.file={config}"),
                *(f"--storage.tsdb.path={home / 'series'}", "--web.listen-address=127.0.0.1:0"),
            ],
            home / "prometheus.log",
        )
        try:
            self.address = self.child.wait_for(_address, START_TIMEOUT_S, "address")
        except BaseException:
            self.child.kill()
            raise

    def stop(self) -> None:
        self.child.stop()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of an expression, each with `metric` and `value`. Raises ValueError if it is not
        PromQL."""
        answer = self._get("query", {"query": expression})
        found: list[dict[str, Any]] = answer["result"]
        return found

    def alerts(self) -> dict[str, list[dict[str, str]]]:
        """Returns the names of the alerts that fire, each with the labels of its series."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self._get("alerts", {})["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def _get(self, path: str, parameters: dict[str, str]) -> dict[str, Any]:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        # Whatever proxy the machine uses, loopback needs none.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=30) as response:
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from None
        data: dict[str, Any] = answer["data"]
        return data


def _address(log: str) -> str | None:
    found = re.search(r'msg="Listening on" address=(\S+)', log)
    return found[1] if found else None
