"""Flags that all commands share, errors, contexts and completion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metaq.cli.exits import NOT_FOUND
from tests.integration.cli.conftest import Run
from tests.support.metaq import COMMAND, Metaq

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--namesrv", "{}", "-o", "json", "topic", "show", "Flags"),
        ("topic", "--namesrv={}", "-o", "json", "show", "Flags"),
        ("topic", "show", "Flags", "--namesrv", "{}", "--output", "json"),
        ("--namesrv", NOBODY, "-o", "csv", "topic", "show", "Flags", "--namesrv", "{}", "-o", "json"),
    ],
)
def test_flags_stand_before_or_after_the_command(
    served: Metaq, metaq: Run, arguments: tuple[str, ...]
) -> None:
    metaq("topic", "create", "Flags", "--queues", "1")
    words = [word.replace("{}", served.nameserver) for word in arguments]
    outcome = metaq(*words, METAQ_NAMESRV=NOBODY)
    assert json.loads(outcome.stdout)["topic"] == "Flags"


def test_a_flag_of_one_call_is_forgotten_by_the_next(metaq: Run) -> None:
    assert metaq("-o", "json", "topic", "list").stdout.startswith("[")
    assert not metaq("topic", "list").stdout.startswith("[")


def ended(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_errors_are_lines_or_json(served: Metaq) -> None:
    outcome = ended("topic", "show", "Nowhere", "--namesrv", served.nameserver, "-o", "json")
    error = json.loads(outcome.stderr)["error"]
    assert (outcome.returncode, outcome.stdout) == (NOT_FOUND, "")
    assert error["type"] == "NoRoute" and error["message"] == "topic Nowhere does not exist"
    assert "metaq topic create Nowhere" in error["hint"]

    outcome = ended("topic", "list", "-o", "yaml")
    assert outcome.returncode == 2
    assert "'yaml' is not one of table, json, csv" in outcome.stderr

    outcome = ended("topic", "list", "--namesrv", NOBODY)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith(f"metaq: no name server answers: {NOBODY}")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("produce", "T", "x"), "`metaq send`"),
        (("topic", "describe", "T"), "`metaq topic show`"),
        (("gruop",), "`metaq group`"),
    ],
)
def test_other_words_for_commands(metaq: Run, words: tuple[str, ...], meant: str) -> None:
    outcome = metaq(*words)
    assert outcome.exit_code == 2
    assert f"did you mean {meant}?" in outcome.stderr


def test_a_misspelt_topic_is_suggested(metaq: Run) -> None:
    metaq("topic", "create", "Invoices")
    outcome = metaq("topic", "show", "invoicse")
    assert "did you mean Invoices?" in str(outcome.exception)


def test_a_misspelt_variable_is_suggested(metaq: Run) -> None:
    outcome = metaq("topic", "list", METAQ_NAMESVR=NOBODY)
    assert "METAQ_NAMESVR is not a setting and is ignored (did you mean METAQ_NAMESRV?)" in outcome.stderr


def test_contexts(served: Metaq, metaq: Run, tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"
    assert "There is no context" in metaq("context", "list").stdout
    metaq("context", "set", "here", "--namesrv", served.nameserver)
    secret = metaq(
        *("context", "set", "gone", "--namesrv", NOBODY, "--access-key", "me", "--secret-key-file", "-"),
        text="hush\n",
    )
    assert secret.exit_code == 0, secret.output
    assert file.stat().st_mode & 0o777 == 0o600 and "hush" in file.read_text()
    shown = json.loads(metaq("context", "list", "-o", "json").stdout)
    assert [(row["name"], row["in_use"], row["access_key"]) for row in shown] == [
        ("gone", False, "me"),
        ("here", True, None),
    ]
    for outcome in (metaq("context", "list"), metaq("context", "show", "gone"), secret):
        assert "hush" not in outcome.output
    # The context counts before METAQ_NAMESRV, a flag before the context.
    assert metaq("topic", "list", METAQ_NAMESRV=NOBODY).exit_code == 0
    metaq("context", "use", "gone")
    assert metaq("topic", "list").exit_code == 1
    assert metaq("topic", "list", "--namesrv", served.nameserver).exit_code == 0
    assert metaq("--context", "here", "topic", "list").exit_code == 0
    assert metaq("topic", "list", METAQ_CONTEXT="here").exit_code == 0
    assert metaq("context", "delete", "gone", text="n\n").exit_code == 1
    assert metaq("context", "delete", "gone", "--yes").exit_code == 0
    assert metaq("topic", "list").exit_code == 0


def test_contexts_that_are_wrong(metaq: Run, tmp_path: Path) -> None:
    assert "is new and needs --namesrv" in str(metaq("context", "set", "x").exception)
    assert "has a comma" in str(metaq("context", "set", "x", "--namesrv", "a:1,b:2").exception)
    metaq("context", "set", "test", "--namesrv", NOBODY)
    assert "did you mean test?" in str(metaq("context", "use", "tset").exception.hint)  # type: ignore[union-attr]
    assert "there is no context other" in str(metaq("topic", "list", METAQ_CONTEXT="other").exception)
    (tmp_path / "contexts.toml").write_text("current = 3\n")
    assert "must be tables" in str(metaq("context", "list").exception)


def test_bash_completes_live_names(served: Metaq, metaq: Run, tmp_path: Path) -> None:
    metaq("topic", "create", "Completed")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "metaq"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m metaq "$@"\n')
    command.chmod(0o755)
    script = """
eval "$(metaq completion bash)"
for line in "metaq tail Compl" "metaq clu" "metaq tail Completed -o j"; do
    COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$line; COMP_POINT=${#line}
    _metaq_completion metaq "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    echo "${COMPREPLY[@]}"
done
"""
    environment = {
        **os.environ,
        "METAQ_NAMESRV": served.nameserver,
        "METAQ_CONTEXTS": str(tmp_path / "none"),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
    }
    outcome = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert outcome.stdout.splitlines() == ["Completed", "cluster", "json"], outcome.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(metaq: Run, shell: str) -> None:
    script = metaq("completion", shell).stdout
    assert f"complete_{shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_bench(served: Metaq, metaq: Run) -> None:
    def bench(line: str) -> list[dict[str, Any]]:
        outcome = metaq("bench", *line.split(), "Measured", "-o", "json")
        found: list[dict[str, Any]] = json.loads(outcome.stdout)
        return found

    metaq("topic", "create", "Measured", "--queues", "2")
    [sent] = bench("produce --messages 50 --threads 4")
    assert (sent["what"], sent["messages"], sent["failed"]) == ("sends", 50, 0)
    assert 0 < sent["p50_ms"] <= sent["p99_ms"] <= sent["max_ms"]
    [sent] = bench("produce --messages 49 --buffered")
    assert (sent["messages"], sent["failed"]) == (49, 0)
    # Each of the two sent one message more, to open its connection.
    [got] = bench("consume --messages 101")
    assert got["messages"] == 101
    both = bench("run --messages 20 --rate 200")
    assert [(one["what"], one["failed"]) for one in both] == [("sends", 0), ("end to end", 0)]
    assert both[1]["messages"] >= 20
