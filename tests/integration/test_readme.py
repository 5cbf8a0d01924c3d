"""Runs the blocks of the README as a reader would; tests/spark/test_pages.py runs its Spark example."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.maven import classpath, java
from tests.support.metaq import Metaq
from tests.support.processes import Child

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


def block(language: str, holding: str) -> str:
    """Returns the one block that holds a text."""
    found = [text for kind, text in BLOCKS if kind == language and holding in text]
    assert len(found) == 1, f"{len(found)} {language} blocks of the README hold {holding!r}"
    return found[0]


def at(text: str, metaq: Metaq) -> str:
    """Replaces the addresses of the page with those of a running server."""
    return text.replace("127.0.0.1:9876", metaq.nameserver).replace("127.0.0.1:10911", metaq.broker)


def test_every_block_is_run_by_a_test() -> None:
    known = ["mermaid", "bash", "bash", "python", "java", "python"]
    assert [language for language, _ in BLOCKS] == known


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
    script = tmp_path / "hello.py"
    script.write_text(at(block("python", "metaq.Client"), served), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.stderr == ""
    assert re.match(r"[0-9A-F]{32} Queue\(topic='Hello'", outcome.stdout), outcome.stdout
    assert "greeting from Python\n" in outcome.stdout
    assert "[greeting] from Python" in served.run("tail", "Hello", "--no-follow").stdout


def test_make_run_starts_it_and_ctrl_c_stops_it(tmp_path: Path) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.fail("run by `make test`, which has set up the environment that `make run` uses")
    command = block("bash", "make run").strip()
    arguments = f"--namesrv-port 0 --broker-port 0 --data {tmp_path / 'data'}"
    child = Child(["bash", "-c", f'exec {command} ARGS="{arguments}"'], tmp_path / "log", directory=ROOT)
    child.wait_for(lambda log: log if "\nMETAQ_READY {" in log else None, 120, "ready line")
    # A terminal sends Ctrl-C to make and to the process that make started. Only the latter matters.
    (started,) = children_of(child.process.pid)
    os.kill(started, signal.SIGINT)
    child.process.wait(60)
    assert child.process.returncode == 0, child.tail()
    assert not (tmp_path / "data" / "abort").exists()


def children_of(parent: int) -> list[int]:
    """Reads /proc: the program that lists processes is not on every machine."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything; the state and the parent's id follow it.
            _, _, rest = status.read_text(errors="replace").rpartition(")")
        except OSError:
            continue  # It ended meanwhile.
        if int(rest.split()[1]) == parent:
            found.append(int(status.parent.name))
    return found


def test_make_test_is_what_continuous_integration_runs() -> None:
    assert block("bash", "make test").strip() in (ROOT / ".ci" / "run").read_text()
