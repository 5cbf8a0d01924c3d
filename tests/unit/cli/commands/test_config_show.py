"""metaq config show, and how the command line answers mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from metaq import __version__
from metaq.config.options import OPTIONS
from tests.support.metaq import run


def test_every_option_is_shown_with_its_origin() -> None:
    outcome = run("config", "show", "--set", "flush=async", METAQ_NAME="b7")
    assert outcome.returncode == 0
    rows = [line.split() for line in outcome.stdout.splitlines() if line.strip()]
    shown = {row[0]: row for row in rows}
    assert set(OPTIONS) <= set(shown)
    assert shown["flush"] == ["flush", "async", "--set"]
    assert shown["name"] == ["name", "b7", "METAQ_NAME"]
    assert shown["host"] == ["host", "127.0.0.1", "default"]


def test_json_for_programs(tmp_path: Path) -> None:
    file = tmp_path / "metaq.toml"
    file.write_text('namesrv = ["a:1", "b:2"]\n')
    outcome = run("config", "show", "--config", str(file), "-o", "json")
    shown = json.loads(outcome.stdout)
    assert list(shown) == list(OPTIONS)
    assert (shown["namesrv"]["value"], shown["namesrv"]["origin"]) == (["a:1", "b:2"], str(file))


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b7\nuseTLS=false\n")
    outcome = run("config", "show", "--config", str(file))
    assert outcome.returncode == 0
    assert outcome.stderr == f"metaq: {file}: useTLS has no effect in MetaQ and is ignored\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("config", "show", "--set", "flsh=async"),
            2,
            "metaq: --set: there is no setting flsh (did you mean flush?); `metaq config show` lists",
        ),
        (
            ("serve", "--host", "0.0.0.0", "--broker-port", "0", "--namesrv-port", "0"),
            2,
            "metaq: 0.0.0.0:0 is open to other machines, but MetaQ has no access control yet; "
            "listen on 127.0.0.1, or use --insecure-listen if you trust the network\n",
        ),
        (("serve", "--flush", "never"), 2, "metaq: flush=never (--flush) must be sync or async\n"),
        (
            ("tail", "T", "--from", "yesterday"),
            1,
            'metaq: --from: "yesterday" is not a valid time; use -10m, 2026-01-31T12:00 or an offset\n',
        ),
        (
            ("send", "T", "body", "--property", "x"),
            1,
            "metaq: --property x has no '='; write ",
        ),
        (
            ("send", "T", ""),
            1,
            "metaq: the message is empty; RocketMQ clients refuse a message without a body\n",
        ),
        (("topic", "list", "--namesrv", "127.0.0.1:1"), 1, "metaq: no name server answers: 127.0.0.1:1: "),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments: tuple[str, ...], code: int, message: str) -> None:
    outcome = run(*arguments)
    assert outcome.returncode == code
    assert outcome.stdout == ""
    assert outcome.stderr.startswith(message)
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("sned",), ("serve", "--broker-prot", "0"), ("topic", "crate")])
def test_a_misspelt_command_or_flag_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    outcome = run(*arguments)
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr


def test_version() -> None:
    assert run("--version").stdout == f"metaq {__version__}\n"


def test_the_version_is_the_same_everywhere() -> None:
    root = Path(__file__).parents[4]
    cargo = tomllib.loads((root / "Cargo.toml").read_text())
    assert cargo["workspace"]["package"]["version"] == __version__
    assert f"## {__version__}" in (root / "CHANGELOG.md").read_text()


def test_help_loads_neither_the_data_plane_nor_the_protocol() -> None:
    """The command line starts quickly because a command imports what it needs only when it runs."""
    script = (
        "import sys, metaq.cli; "
        "print([name for name in ('metaq._core', 'asyncio', 'msgspec', 'rich.table') if name in sys.modules])"
    )
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert outcome.stdout == "[]\n"
