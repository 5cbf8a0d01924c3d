"""log-transport as people run it: the command, its plan, standard input, and what it says to a typo."""

from __future__ import annotations

import json
import os
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
        puller = client.puller(start="begin")
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


def test_files_are_followed_until_it_is_told_to_end(served: Metaq, tmp_path: Path) -> None:
    make(served, "followed")
    (tmp_path / "app.log").write_text("".join(f"line {n}\n" for n in range(500)) + "not ended")
    path = config(tmp_path, served, "followed", ["*.log"])
    planned = run("--config", str(path), "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["tables"] == [{"file": str(tmp_path / "app.log"), "bytes": 4399, "sent": 0}]
    child = Child(
        [*COMMAND, "--config", str(path), "-o", "json"],
        tmp_path / "out.txt",
        dict(os.environ),
        directory=tmp_path,
    )
    try:
        child.wait_for(lambda log: '"rows": 500' in log or '"rows":500' in log or None, 60, "500 rows told")
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(60) == 0
    finally:
        child.kill()
    assert bodies(served, "followed", 500) == [b"line %d" % n for n in range(500)]
    plan = json.loads(run("--config", str(path), "--dry-run", "-o", "json").stdout)
    assert plan["tables"][0]["sent"] == 4399 - len("not ended")


def test_standard_input_is_sent_to_its_end(served: Metaq, tmp_path: Path) -> None:
    make(served, "piped")
    path = config(tmp_path, served, "piped", ["-"], "line_bytes = 8")
    done = run("--config", str(path), given=b"one\n\ntwo, longer\n8 bytes!\nlast")
    assert done.returncode == 0, done.stderr
    assert "6 rows" in done.stdout
    assert bodies(served, "piped", 6) == [b"one", b"", b"two, lon", b"ger", b"8 bytes!", b"last"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("paths = ", "path = "), "did you mean paths?"),
        (("[files]", "[file]"), "did you mean files?"),
        (('["*.log"]', "[]"), "files.paths"),
        (('["*.log"]', '["-", "a"]'), "standard input stands alone"),
        (('name = "typo"', 'name = "a b"'), "topic.name"),
        (("[files]", '[files]\nstart = "middle"'), "first or last"),
    ],
)
def test_a_typo_is_named(served: Metaq, tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = config(tmp_path, served, "typo", ["*.log"])
    path.write_text(path.read_text().replace(*change))
    done = run("--config", str(path), "--dry-run")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert says in done.stderr
