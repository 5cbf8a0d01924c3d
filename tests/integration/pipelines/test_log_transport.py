"""log-transport as a command: its plan, files, standard input, and errors for typos."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import metaq
from tests.support.metaq import Metaq
from tests.support.processes import Child

COMMAND = [sys.executable, "-m", "metaq", "pipeline", "run", "log-transport"]


def config(folder: Path, served: Metaq, topic: str, paths: list[str], more: str = "") -> Path:
    path = folder / "logs.toml"
    path.write_text(
        f"[files]\npaths = {json.dumps(paths)}\n{more}\n"
        f'[topic]\nnamesrv = "{served.nameserver}"\nname = "{topic}"\n[state]\nfile = "state.json"\n'
    )
    return path


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *arguments], input=given, capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def bodies(served: Metaq, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with metaq.Client(served.nameserver) as client:
        puller = client.puller(start="earliest")
        puller.assign(topic)
        for _ in range(200):
            found += [message.body for message in puller.poll(0.2, count=1000)]
            if len(found) >= count:
                break
    return found


def make(served: Metaq, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metaq", "topic", "create", topic, "--namesrv", served.nameserver],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_files_are_followed_until_a_signal(served: Metaq, tmp_path: Path) -> None:
    make(served, "followed")
    (tmp_path / "app.log").write_text("".join(f"line {n}\n" for n in range(500)) + "not ended")
    path = config(tmp_path, served, "followed", ["*.log"])
    planned = run("--config", str(path), "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["tables"] == [{"file": str(tmp_path / "app.log"), "bytes": 4399, "sent": 0}]
    (check,) = plan["checks"]
    assert check.startswith(f"topic followed: {served.nameserver} answers, and 1 broker with ")
    child = Child(
        [*COMMAND, "--config", str(path), "-o", "json"],
        tmp_path / "out.txt",
        dict(os.environ),
        directory=tmp_path,
    )
    try:
        child.wait_for(
            lambda log: '"rows": 500' in log or '"rows":500' in log or None, 60, "a report of 500 rows"
        )
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(60) == 0
    finally:
        child.kill()
    assert bodies(served, "followed", 500) == [b"line %d" % n for n in range(500)]
    plan = json.loads(run("--config", str(path), "--dry-run", "-o", "json").stdout)
    assert plan["tables"][0]["sent"] == 4399 - len("not ended")


def test_a_plan_asks_the_servers_of_the_topic(served: Metaq, tmp_path: Path) -> None:
    path = config(tmp_path, served, "unborn", ["-"])
    planned = run("--config", str(path), "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"checked  topic unborn: {served.nameserver} answers, and does not know it yet" in planned.stdout
    assert "warning: there is no topic unborn yet" in planned.stdout
    path.write_text(path.read_text().replace(served.nameserver, "127.0.0.1:1"))
    failed = run("--config", str(path), "--dry-run")
    assert failed.returncode == 1
    assert "no name server answers: 127.0.0.1:1" in failed.stderr and str(path) in failed.stderr


def test_standard_input_is_sent_to_its_end(served: Metaq, tmp_path: Path) -> None:
    make(served, "piped")
    path = config(tmp_path, served, "piped", ["-"], "line_bytes = 8")
    done = run("--config", str(path), given=b"one\n\ntwo, longer\n8 bytes!\nlast")
    assert done.returncode == 0, done.stderr
    assert "6 rows" in done.stdout
    assert bodies(served, "piped", 6) == [b"one", b"", b"two, lon", b"ger", b"8 bytes!", b"last"]


def test_the_page(served: Metaq, tmp_path: Path) -> None:
    """Runs the examples of docs/log-transport.md."""
    text = (Path(__file__).parents[3] / "docs" / "log-transport.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    make(served, "page")
    toml = blocks["toml"].replace("127.0.0.1:9876", served.nameserver).replace('"logs"', '"page"')
    folder = tmp_path / "shop"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.log").write_text("one\ntwo\n")
    (folder / "deep" / "b.log").write_text("three\n")
    (tmp_path / "logs.toml").write_text(toml.replace("/var/log/shop", str(folder)))
    paths = re.sub(r'paths = \[.*?\](.*or (\["-"\]))', r"paths = \2\1", toml)
    (tmp_path / "stdin.toml").write_text(paths.replace("log-transport.json", "stdin.json"))
    dry, real, piped = (shlex.split(line, comments=True) for line in blocks["bash"].splitlines())
    assert dry == [*real, "--dry-run"]
    program = [sys.executable, "-m", "metaq"]
    planned = subprocess.run(
        [*program, *dry[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert planned.returncode == 0, planned.stderr
    assert str(folder / "a.log") in planned.stdout.replace("\n", "")
    child = Child([*program, *real[1:], "-o", "json"], tmp_path / "out.txt", directory=tmp_path)
    try:
        child.wait_for(lambda log: '"rows": 3' in log or '"rows":3' in log or None, 120, "a report of 3 rows")
        assert child.stop() == 0, child.tail()
    finally:
        child.kill()
    # The test supplies the lines that the page takes from the journal.
    pipe = piped.index("|")
    assert piped[pipe + 1] == "metaq"
    done = subprocess.run(
        [*program, *piped[pipe + 2 :]],
        input="four\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(bodies(served, "page", 4)) == [b"four", b"one", b"three", b"two"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("paths = ", "path = "), "did you mean paths?"),
        (("[files]", "[file]"), "did you mean files?"),
        (('["*.log"]', "[]"), "files.paths"),
        (('["*.log"]', '["-", "a"]'), "standard input must stand alone"),
        (('name = "typo"', 'name = "a b"'), "topic.name"),
        (("[files]", '[files]\nstart = "middle"'), "earliest or latest"),
    ],
)
def test_a_typo_is_named(served: Metaq, tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = config(tmp_path, served, "typo", ["*.log"])
    path.write_text(path.read_text().replace(*change))
    done = run("--config", str(path), "--dry-run")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert message in done.stderr
