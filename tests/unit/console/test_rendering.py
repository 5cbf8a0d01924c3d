"""Commands to copy, and small curves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import typer

from metaq.cli import app
from metaq.console.live.rings import Series
from metaq.console.rendering import LOCAL_COMMANDS, at_cluster, environment, known_from, sparkline

SERVERS = "10.0.0.1:9876;10.0.0.2:9876"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("metaq group show billing", f"metaq group show billing --namesrv '{SERVERS}'"),
        ("metaq send Hello 'first message'", f"metaq send Hello 'first message' --namesrv '{SERVERS}'"),
        ("metaq broker --namesrv 10.0.0.1:9876", "metaq broker --namesrv 10.0.0.1:9876"),
        ("metaq nameserver --listen 10.0.0.1:9876", "metaq nameserver --listen 10.0.0.1:9876"),
        ("metaq pipeline run log-lake --config lake.toml", "metaq pipeline run log-lake --config lake.toml"),
        ("timedatectl set-ntp true", "timedatectl set-ntp true"),
        ("http://127.0.0.1:9877/link#token", "http://127.0.0.1:9877/link#token"),
    ],
)
def test_a_command_goes_to_the_cluster_of_the_console(command: str, expected: str) -> None:
    assert at_cluster(SERVERS, command) == expected
    assert at_cluster("127.0.0.1:9876", command) == command


def test_every_command_that_is_shown_goes_to_the_cluster_of_the_console() -> None:
    variables: dict[str, Any] = {
        "t": lambda key, **_: key,
        "static": lambda name: name,
        "at_cluster": partial(at_cluster, SERVERS),
    }
    macros: Any = environment().get_template("macros.html").make_module(variables)
    for shown in (macros.command("metaq topic list"), macros.empty("Nothing", "metaq topic list")):
        assert str(shown).count("metaq topic list --namesrv &#39;10.0.0.1:9876;10.0.0.2:9876&#39;") == 2


def test_only_commands_that_ask_no_cluster_are_local() -> None:
    for name in LOCAL_COMMANDS:
        command: Any = typer.main.get_command(app)
        for word in name.split()[1:]:
            command = command.get_command(command.make_context("metaq", [], resilient_parsing=True), word)
        assert not [option for option in command.params if "--namesrv" in option.opts], name


def test_charts_begin_with_the_first_value_that_is_known() -> None:
    assert known_from(Series(1_000, 10, [None, None, 0.0, None])) == 1_020
    assert known_from(Series(1_000, 10, [None])) is None


def test_small_values_make_a_low_curve() -> None:
    def heights(values: list[float | None]) -> list[float]:
        path = str(sparkline(values, least=100)).partition('d="')[2].partition('"')[0]
        return [float(point.split()[1]) for point in path.replace("L", "M").split("M")[1:]]

    assert heights([0.0, 3.0]) == [19.0, 18.5], "three hundredths of the height"
    assert heights([0.0, None, 1_333.0]) == [19.0, 1.0]
