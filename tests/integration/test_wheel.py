"""docs/install.md: the wheel that `make wheel` builds, installed where there is no Rust and no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.processes import Child

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)

SEND = """
import sys
import metaq

with metaq.Client(sys.argv[1]) as client, client.producer("wheel") as producer:
    print(producer.send("Hello", b"from a wheel").status)
"""


def run(*command: str, path: str | None = None, directory: Path = ROOT) -> str:
    environment = {} if path is None else {"PATH": path, "PYTHONPATH": "", "VIRTUAL_ENV": ""}
    outcome = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def wheel() -> Path:
    assert COMMANDS[1].startswith("make wheel\n")
    run("make", "wheel")
    (built,) = (ROOT / "dist").glob("pymetaq-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment, made by the commands of the page without Rust on the PATH."""
    home = tmp_path_factory.mktemp("wheel")
    tools = home / "tools"
    tools.mkdir()
    python = tools / "python3"
    # A script, because a link into another environment would be that environment.
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')  # type: ignore[attr-defined]
    python.chmod(0o755)
    assert shutil.which("cargo", path=str(tools)) is None
    shutil.copytree(wheel.parent, home / "dist")
    shutil.copytree(ROOT / "requirements", home / "requirements")
    commands = COMMANDS[1].partition("\n")[2]
    shell = shutil.which("bash") or "bash"
    shown = run(shell, "-euo", "pipefail", "-c", commands, path=str(tools), directory=home)
    assert "serve" in shown
    return home / "metaq-env" / "bin"


def test_the_wheel_serves_every_later_python_and_carries_its_papers(wheel: Path) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert wheel.name.startswith(f"pymetaq-{version}-cp311-abi3-manylinux_")
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        facts = f"pymetaq-{version}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{facts}/METADATA").decode())
    assert "metaq/_core.abi3.so" in names and "metaq/py.typed" in names
    assert f"{facts}/licenses/LICENSE" in names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert str(metadata.get_payload()).strip() == readme.strip()


def test_a_message_is_sent_without_rust_and_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    server = Child(
        [str(installed / "metaq"), "serve", *ports, "--data", str(tmp_path / "data")],
        tmp_path / "log",
        {"PATH": str(installed), "PYTHONPATH": ""},
        directory=tmp_path,
    )
    try:
        ready = server.wait_for(lambda log: log if "METAQ_READY {" in log else None, 60, "ready line")
        found = re.search(r'"nameserver": ?"([^"]+)"', ready)
        assert found
        python = str(installed / "python")
        where = run(
            python, "-c", "import metaq; print(metaq.__file__)", path=str(installed), directory=tmp_path
        )
        assert Path(where.strip()).is_relative_to(installed.parent)
        sent = run(python, "-c", SEND, found[1], path=str(installed), directory=tmp_path)
        assert sent.strip() == "stored"
    finally:
        assert server.stop() == 0, server.tail()


def test_setup_makes_the_command(installed: Path) -> None:
    make, show = COMMANDS[0].splitlines()
    assert make == "make setup"
    version = run(*show.split())
    assert version == run(str(installed / "metaq"), "--version", path=str(installed))
