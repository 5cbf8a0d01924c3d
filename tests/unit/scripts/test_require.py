"""scripts/require.sh finds etcd and Prometheus, or says what to install."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.scripts import SCRIPTS

ADVICE = "missing: etcd 3.4 or newer"
INSTALL = "on Debian or Ubuntu: sudo apt-get install etcd-server"


def program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The only folder on the PATH: the tools that the script itself needs, and a user who is not root."""
    link(tmp_path, "bash", "sort", "head", "grep", "sh")
    program(tmp_path, "id", "echo 1000")
    program(tmp_path, "apt-get", f"touch {tmp_path}/installed; exit 1")
    return tmp_path


def link(folder: Path, *tools: str) -> None:
    for tool in tools:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)


def require(folder: Path, tool: str = "etcd") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPTS / "require.sh"), tool],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("version", ["3.4.23", "3.5.16", "3.10.0", "4.0.0"])
def test_an_etcd_on_the_path_is_enough(folder: Path, version: str) -> None:
    program(folder, "etcd", f"echo 'etcd Version: {version}'; echo 'Go Version: go1.19.8'")
    outcome = require(folder)
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize("version", [None, "3.3.25"])
def test_without_root_it_says_what_to_install(folder: Path, version: str | None) -> None:
    if version is not None:
        program(folder, "etcd", f"echo 'etcd Version: {version}'")
    outcome = require(folder)
    assert outcome.returncode == 1
    assert ADVICE in outcome.stderr and INSTALL in outcome.stderr
    assert not (folder / "installed").exists()


def test_root_without_a_mirror_learns_the_same(folder: Path) -> None:
    program(folder, "id", "echo 0")
    link(folder, "mktemp", "rm", "touch", "flock")
    outcome = require(folder)
    assert outcome.returncode == 1
    assert (folder / "installed").exists()
    assert ADVICE in outcome.stderr and INSTALL in outcome.stderr


def test_only_one_script_at_a_time_installs(folder: Path) -> None:
    program(folder, "id", "echo 0")
    link(folder, "flock", "chmod", "sleep")
    # The second script finds the first one installing, and then finds Go.
    program(
        folder,
        "apt-get",
        f"cd {folder}; echo begins >> log; sleep 0.5; echo ends >> log; : > go; chmod +x go",
    )
    scripts = [
        subprocess.Popen(
            ["bash", str(SCRIPTS / "require.sh"), "go"],
            env={"PATH": str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    told = [script.communicate(timeout=60)[1] for script in scripts]
    assert [script.returncode for script in scripts] == [0, 0, 0], told
    assert (folder / "log").read_text().split() == ["begins", "ends"]


@pytest.mark.parametrize(("version", "is_enough"), [("2.42.0", True), ("3.1.0", True), ("2.33.5", False)])
def test_prometheus_needs_both_programs(folder: Path, version: str, is_enough: bool) -> None:
    program(folder, "prometheus", f"echo 'prometheus, version {version}'")
    assert require(folder, "prometheus").returncode == 1
    program(folder, "promtool", "true")
    outcome = require(folder, "prometheus")
    assert outcome.returncode == (0 if is_enough else 1)
    assert ("missing: Prometheus 2.40 or newer" in outcome.stderr) is not is_enough
