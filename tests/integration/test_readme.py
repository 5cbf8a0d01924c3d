"""What the README tells people to type, typed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaq.config import load
from tests.support.maven import classpath, java
from tests.support.metaq import Metaq, run
from tests.support.processes import Child, free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
METAQ = f"{sys.executable} -m metaq"


def block(language: str, holding: str) -> str:
    """The one block that holds a text."""
    found = [text for kind, text in BLOCKS if kind == language and holding in text]
    assert len(found) == 1, f"{len(found)} {language} blocks of the README hold {holding!r}"
    return found[0]


def at(text: str, metaq: Metaq) -> str:
    """The same for a server on other ports."""
    return text.replace("127.0.0.1:9876", metaq.nameserver).replace("127.0.0.1:10911", metaq.broker)


def shell(script: str, directory: Path, **variables: str) -> str:
    outcome = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(".venv/bin/metaq", METAQ)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def test_every_block_is_run_by_a_test() -> None:
    known = ["mermaid", "bash", "bash", "java", "python", "python", "python", "bash", "toml", "bash"]
    assert [language for language, _ in BLOCKS] == known


def test_the_first_commands(served: Metaq, tmp_path: Path) -> None:
    output = shell(block("bash", "topic create"), tmp_path, METAQ_NAMESRV=served.nameserver)
    assert "Hello has 4 queues on broker-a" in output
    assert "SEND_OK Hello broker-a queue" in output
    assert re.search(r"\d:0 \[greeting\] first message$", output, flags=re.MULTILINE)
    assert len(re.findall(r"^ ?broker-a +\d", output, flags=re.MULTILINE)) == 4


def test_the_java_snippet(served: Metaq, tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(at(block("java", "DefaultMQProducer"), served), encoding="utf-8")
    jars = classpath(ROOT / "tests" / "interop" / "java" / "pom.xml", ROOT / "build" / "readme")
    outcome = subprocess.run(
        [java(), str(source)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "CLASSPATH": jars},
    )
    assert "sendStatus=SEND_OK" in outcome.stdout, outcome.stdout + outcome.stderr
    assert "from Java" in served.run("tail", "Hello", "--no-follow").stdout


def test_the_python_snippet(served: Metaq, tmp_path: Path) -> None:
    served.run("topic", "create", "Hello")
    script = tmp_path / "hello.py"
    script.write_text(at(block("python", "metaq.Client"), served), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert re.match(r"[0-9A-F]{32} Queue\(topic='Hello'", outcome.stdout), outcome.stderr
    tail = served.run("tail", "Hello", "--no-follow").stdout
    assert "[greeting] from Python" in tail
    assert len(re.findall(r" \d+$", tail, flags=re.MULTILINE)) == 1000


def test_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_billing.py").write_text(block("python", "metaq_server"), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in outcome.stdout, outcome.stdout + outcome.stderr


def test_the_roles_apart(tmp_path: Path) -> None:
    script = block("bash", "metaq nameserver").replace(".venv/bin/metaq", METAQ)
    nameserver = free_port()
    for port in ("10911", "20911"):
        script = script.replace(f":{port}", f":{free_port(neighbours=(-2,))}")
    script = script.replace(":9876", f":{nameserver}")
    child = Child(
        ["bash", "-c", f"{script}\ntrap 'kill $(jobs -p); wait' TERM; wait"],
        tmp_path / "log",
        directory=tmp_path,
    )
    try:
        deadline = time.monotonic() + 90
        brokers = ""
        while "broker-a, broker-b" not in brokers:
            assert time.monotonic() < deadline, child.tail()
            created = run("topic", "create", "Apart", "--namesrv", f"127.0.0.1:{nameserver}")
            brokers = created.stdout + created.stderr
    finally:
        child.stop()
    assert {path.name for path in tmp_path.iterdir()} >= {"data-a", "data-b"}


def test_the_file(tmp_path: Path) -> None:
    file = tmp_path / "metaq.toml"
    file.write_text(block("toml", "name ="), encoding="utf-8")
    assert load(file=str(file), environment={})["file_reserved_hours"] == 48


def test_make_run_starts_it_and_ctrl_c_stops_it(tmp_path: Path) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.fail("run by `make test`, which has set up the environment that `make run` uses")
    command = block("bash", "make run").strip()
    arguments = f"--namesrv-port 0 --broker-port 0 --data {tmp_path / 'data'}"
    child = Child(["bash", "-c", f'exec {command} ARGS="{arguments}"'], tmp_path / "log", directory=ROOT)
    child.wait_for(lambda log: log if "\nMETAQ_READY {" in log else None, 120, "ready line")
    # As a terminal does it: to make and to what it started.
    found = subprocess.run(
        ["pgrep", "-P", str(child.process.pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(found.stdout.split()[0]), signal.SIGINT)
    child.process.wait(60)
    assert child.process.returncode == 0, child.tail()
    assert not (tmp_path / "data" / "abort").exists()


def test_make_test_is_what_continuous_integration_runs() -> None:
    assert block("bash", "make test").strip() in (ROOT / ".ci" / "run").read_text()
