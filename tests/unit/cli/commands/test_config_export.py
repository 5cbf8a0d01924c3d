"""metaq config export: what it prints, and when it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from metaq.broker.state.apache_files import open_journal
from metaq.held_file import HeldFile
from metaq.protocol.bodies import TopicConfig
from tests.support.metaq import run


def stopped_broker(directory: Path) -> None:
    async def scenario() -> None:
        journal = await open_journal(directory)
        await journal.write([("topics", "orders", TopicConfig(topic_name="orders").encode())])
        await journal.close()

    directory.joinpath("lock").touch()
    asyncio.run(scenario())


def test_the_files_are_written_and_named(tmp_path: Path) -> None:
    stopped_broker(tmp_path)
    outcome = run("config", "export", "--data", str(tmp_path))
    assert (outcome.returncode, outcome.stderr) == (0, "")
    topics = tmp_path / "config" / "topics.json"
    assert str(topics) in outcome.stdout.splitlines()
    assert list(json.loads(topics.read_bytes())["topicConfigTable"]) == ["orders"]
    again = run("config", "export", "--data", str(tmp_path))
    assert (again.returncode, "up to date" in again.stdout) == (0, True)
    for_programs = run("config", "export", "--data", str(tmp_path), "-o", "json")
    assert json.loads(for_programs.stdout) == {"written": []}


def test_a_running_broker_and_a_wrong_folder_are_refused(tmp_path: Path) -> None:
    wrong = run("config", "export", "--data", str(tmp_path))
    assert wrong.returncode == 1
    assert wrong.stderr == f"metaq: {tmp_path} is not the directory of a broker: it has no lock file\n"
    stopped_broker(tmp_path)
    held = HeldFile(tmp_path / "lock")
    running = run("config", "export", "--data", str(tmp_path))
    assert running.returncode == 1
    assert running.stderr == f"metaq: a broker is using {tmp_path}: stop it first\n"
    held.close()
