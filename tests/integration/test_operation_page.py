"""The commands of docs/concepts.md and docs/operation.md, run as a reader would run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from metaq.config import load
from tests.support.metaq import Metaq, run
from tests.support.processes import Child, free_port

DOCS = Path(__file__).parents[2] / "docs"
METAQ = f"{sys.executable} -m metaq"


def blocks(page: str, *languages: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [block for language, block in found if language in languages]


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


def test_the_first_commands(served: Metaq, tmp_path: Path) -> None:
    (commands,) = blocks("concepts.md", "bash")
    output = shell(commands, tmp_path, METAQ_NAMESRV=served.nameserver)
    assert "Hello has 4 queues on broker-a" in output
    assert "SEND_OK Hello broker-a queue" in output
    assert re.search(r"\d:0 \[greeting\] first message$", output, flags=re.MULTILINE)
    # A line for the settings on the broker, and one for each of the four queues.
    assert len(re.findall(r"^ ?broker-a +\d", output, flags=re.MULTILINE)) == 5


def test_the_roles_apart(tmp_path: Path) -> None:
    script = blocks("operation.md", "bash")[0].replace(".venv/bin/metaq", METAQ)
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


def test_the_configuration_file(tmp_path: Path) -> None:
    (text,) = blocks("operation.md", "toml")
    file = tmp_path / "metaq.toml"
    file.write_text(text, encoding="utf-8")
    assert load(file=str(file), environment={})["file_reserved_hours"] == 48


def test_the_ready_line_has_the_fields_of_the_page(start_metaq: Callable[..., Metaq]) -> None:
    (line,) = [block for block in blocks("operation.md", "text") if "METAQ_READY" in block]
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    started = start_metaq("serve", *ports, "--console", "--data", "data")
    assert re.findall(r'"(\w+)":', line) == list(started.ready)


def test_backup_and_restore(tmp_path: Path) -> None:
    _, backup, restore = blocks("operation.md", "bash")
    data = tmp_path / "data"

    def served(*, sends: bool = False) -> str:
        broker = Metaq.serve(tmp_path)
        try:
            if sends:
                assert broker.run("send", "Hello", "kept", "--key", "order-1").returncode == 0
            return broker.run("tail", "Hello", "--no-follow").stdout
        finally:
            assert broker.stop() == 0, broker.child.tail()

    before = served(sends=True)
    assert "kept" in before
    shell(backup, tmp_path)
    shutil.rmtree(data)
    shell(restore, tmp_path)
    assert served() == before

    # The two folders that the page says are enough.
    shutil.rmtree(data)
    data.mkdir()
    for folder in ("commitlog", "journal"):
        shutil.copytree(tmp_path / "backup" / folder, data / folder)
    assert served() == before


def test_the_page_names_every_file_of_a_store(served: Metaq) -> None:
    table = (DOCS / "operation.md").read_text(encoding="utf-8").partition("## Files on disk")[2]
    named = set(re.findall(r"`([\w.-]+)/?`", table.partition("###")[0]))
    found = {path.name for path in Path(served.ready["data"]).iterdir()}
    assert found <= named, found - named
