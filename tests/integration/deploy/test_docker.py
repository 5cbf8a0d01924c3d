"""The image and the compose file, as far as they can be checked without a Docker engine.

Docker's own parsers read both files. The group of compose.yaml runs for real, as processes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.deploy.command_lines import KNOWN_VARIABLES, parse
from tests.integration.deploy.programs import read
from tests.support.etcd import Etcd
from tests.support.metaq import COMMAND, Metaq
from tests.support.processes import Child, find_tool
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "deploy" / "docker"
HEALTHY = DOCKER / "healthy.py"


@pytest.fixture(scope="module")
def stages() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read("dockerfile", DOCKER / "Dockerfile")
    return found


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("compose", DOCKER / "compose.yaml")["services"]
    return found


def is_ours(service: dict[str, Any]) -> bool:
    return bool(service["image"] == "metaq")


def test_the_image_runs_as_a_user_with_a_volume_and_a_health_check(stages: list[dict[str, Any]]) -> None:
    image = stages[-1]
    assert image["user"] == "metaq"
    assert image["volumes"] == [image["env"]["METAQ_DATA"]]
    assert image["health"] == ["CMD", "healthy"]
    assert {"9876", "10911", "5557"} <= set(image["ports"])
    assert image["start"][0] == "metaq" and parse(image["start"][1:]) == "serve"
    named = {variable for variable in image["env"] if variable.startswith("METAQ_")}
    assert named <= KNOWN_VARIABLES
    # Only files in the final image count: the compilers stay behind.
    assert {copy["from"] for copy in image["copies"]} == {"", "build"}


def test_everything_that_is_copied_exists_and_is_not_ignored(
    stages: list[dict[str, Any]], tmp_path: Path
) -> None:
    sources = [
        source
        for stage in stages
        for copy in stage["copies"]
        if not copy["from"]
        for source in copy["sources"]
    ]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for source in sources:
        assert any(source == one or source.startswith(f"{one}/") for one in kept), source
    # These files are enough for Cargo to know every crate.
    for source in sources:
        if source == "crates" or source.startswith("Cargo"):
            copied = tmp_path / source
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, copied, ignore=shutil.ignore_patterns("target", "fuzz"))
            else:
                shutil.copy(ROOT / source, copied)
    cargo = [find_tool("cargo", "Rust"), "metadata", "--locked", "--no-deps", "--format-version=1"]
    done = subprocess.run(cargo, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_of_the_compose_file_is_one_of_metaq(services: dict[str, dict[str, Any]]) -> None:
    ours = {name: service for name, service in services.items() if is_ours(service)}
    assert {parse(service["command"]) for service in ours.values()} == {"nameserver", "broker", "cluster"}
    for name, service in ours.items():
        variables = set(service.get("environment") or {})
        assert variables <= KNOWN_VARIABLES, name
    ids = [service["environment"]["METAQ_ID"] for name, service in ours.items() if name.startswith("broker-")]
    assert ids == ["1", "2", "3"]


def test_files_and_targets_of_the_compose_file_exist(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        for volume in service.get("volumes") or []:
            if volume["type"] == "bind":
                assert Path(volume["source"]).exists(), volume
    config = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    targets = [target for static in job["static_configs"] for target in static["targets"]]
    assert targets == [f"{name}:5557" for name in services if name.startswith("broker-")]


@pytest.fixture
def running() -> Iterator[list[Metaq]]:
    started: list[Metaq] = []
    yield started
    for role in reversed(started):
        if role.child.alive:
            role.stop()


def healthy(*arguments: str, listen: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HEALTHY), *arguments],
        env={**os.environ, "METAQ_METRICS_LISTEN": listen},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_group_of_the_compose_file_works(
    services: dict[str, dict[str, Any]],
    etcd: Etcd,
    tmp_path: Path,
    running: list[Metaq],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its command lines run as they are, but for addresses and paths."""
    key = tmp_path / "cluster.key"
    key.write_text(secrets.token_hex(32))
    here = {
        "0.0.0.0:9876": "127.0.0.1:0",
        "0.0.0.0:10911": "127.0.0.1:0",
        "etcd://etcd:2379": etcd.register,
        "/run/secrets/cluster_key": str(key),
        "/var/lib/metaq": str(tmp_path),
    }

    def start(name: str) -> Metaq:
        service = services[name]
        words = list(service["command"])
        for there, local in here.items():
            words = [word.replace(there, local) for word in words]
        monkeypatch.setenv("METAQ_DATA", str(tmp_path / name))
        monkeypatch.setenv("METAQ_METRICS_LISTEN", "127.0.0.1:0")
        for variable, value in (service.get("environment") or {}).items():
            monkeypatch.setenv(variable, "127.0.0.1" if variable == "METAQ_ADVERTISED_HOST" else value)
        running.append(Metaq(*words, home=tmp_path))
        return running[-1]

    names = start("nameserver")
    port = names.nameserver.rpartition(":")[2]
    assert healthy("--port", port).returncode == 0
    here["nameserver:9876"] = names.nameserver
    brokers = [start(f"broker-{number}") for number in (1, 2, 3)]
    for broker in brokers:
        wait_until(
            lambda listen=broker.ready["metrics"]: healthy(listen=listen).returncode == 0,
            what="healthy",
            interval_s=0.5,
        )
    for variable in ("METAQ_ID", "METAQ_ADVERTISED_HOST", "METAQ_DATA", "METAQ_METRICS_LISTEN"):
        monkeypatch.delenv(variable)
    sent = names.run("send", "Hello", "in three places")
    assert "SEND_OK" in sent.stdout, sent.stderr
    status = names.run("cluster", "status")
    assert status.returncode == 0 and status.stdout.count("in sync") >= 3, status.stdout
    brokers[0].stop()
    gone = healthy(listen=brokers[0].ready["metrics"])
    assert gone.returncode == 1 and "refused" in gone.stdout


def test_as_the_first_process_it_stops_at_once(tmp_path: Path) -> None:
    """In a container metaq is PID 1, for which the kernel ignores signals without a handler."""
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    unshare = find_tool("unshare", "util-linux")
    served = Child(
        [
            *(unshare, "--fork", "--pid", "--kill-child", *COMMAND, "serve"),
            *(
                "--namesrv-port",
                "0",
                "--broker-port",
                "0",
                "--set",
                "metrics=false",
                "--data",
                str(tmp_path / "data"),
            ),
        ],
        tmp_path / "log",
        directory=tmp_path,
    )
    try:
        served.wait_for(lambda log: "ready" if "METAQ_READY" in log else None, 120, "ready line")
        pid = served.process.pid
        (first,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert Path(f"/proc/{first}/status").read_text().split("NSpid:")[1].split()[1] == "1"
        os.kill(int(first), signal.SIGTERM)
        assert served.process.wait(60) == 0
    finally:
        served.kill()
