"""The log of a server."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from metaq.server_logging import (
    LOGGERS_MAX,
    JsonFormatter,
    LevelControl,
    LogLevels,
    TextFormatter,
    is_json,
    unknown_loggers,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(text: str = "%s is up", *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("metaq.broker.broker", level, __file__, 1, text, arguments, None)


def failure() -> logging.LogRecord:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError as error:
        failed = record("it failed")
        failed.exc_info = (type(error), error, error.__traceback__)
        return failed


def test_json_has_the_documented_keys() -> None:
    line = JsonFormatter().format(record("%s is up", "bröker\n"))
    assert "\n" not in line
    fields = json.loads(line)
    assert list(fields) == ["time", "level", "logger", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields["time"])
    assert (fields["level"], fields["logger"], fields["message"]) == (
        "warning",
        "metaq.broker.broker",
        "bröker\n is up",
    )


def test_an_exception_is_a_field_of_its_line() -> None:
    line = JsonFormatter().format(failure())
    assert "\n" not in line
    exception = json.loads(line)["exception"]
    assert exception.startswith("Traceback") and exception.endswith("ValueError: no\nsuch thing")


def test_text_that_is_not_valid_unicode_stays_a_line_of_json() -> None:
    assert json.loads(JsonFormatter().format(record("peer \udc80")))["message"] == "peer \udc80"


def test_text_is_for_people() -> None:
    line = TextFormatter().format(record("%s is up", "broker-a"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING broker\.broker: broker-a is up", line)
    assert "ValueError: no" in TextFormatter().format(failure())


def test_only_a_coloured_formatter_writes_escapes() -> None:
    assert "\x1b[33mWARNING\x1b[0m" in TextFormatter(colour=True).format(record("x"))
    assert "\x1b" not in TextFormatter(colour=True).format(record("x", level=logging.INFO))
    assert "\x1b" not in TextFormatter().format(record("x"))


def test_auto_is_text_on_a_terminal_and_json_otherwise() -> None:
    assert not is_json("auto", Terminal()) and is_json("auto", io.StringIO())
    assert is_json("json", Terminal()) and not is_json("text", io.StringIO())


@pytest.mark.parametrize(
    ("text", "default", "loggers"),
    [
        ("info", "info", {}),
        ("WARNING", "warning", {}),
        ("info,metaq.broker.replication=debug", "info", {"metaq.broker.replication": "debug"}),
        (" error , asyncio = Debug ", "error", {"asyncio": "debug"}),
        ("metaq.ha=debug", "info", {"metaq.ha": "debug"}),
    ],
)
def test_levels_are_read(text: str, default: str, loggers: dict[str, str]) -> None:
    levels = LogLevels.parse(text)
    assert (levels.default, levels.loggers) == (default, loggers)
    assert LogLevels.parse(str(levels)) == levels


@pytest.mark.parametrize(
    "text",
    ["", "loud", "info,debug", "info,metaq=loud", "info,=debug", "info,a b=debug", "info,", "a=b=info"],
)
def test_wrong_levels_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be one of debug, info, warning, error"):
        LogLevels.parse(text)


def test_the_number_of_loggers_is_limited() -> None:
    text = ",".join(["info", *(f"a{number}=debug" for number in range(LOGGERS_MAX + 1))])
    with pytest.raises(ValueError, match="more than"):
        LogLevels.parse(text)


@pytest.fixture
def control() -> Iterator[LevelControl]:
    before = logging.getLogger("metaq").level
    control = LevelControl()
    yield control
    control.set(LogLevels())
    logging.getLogger("metaq").setLevel(before)


def test_levels_change_and_former_ones_are_forgotten(control: LevelControl) -> None:
    replication = logging.getLogger("metaq.broker.replication.group")
    control.set(LogLevels.parse("warning,metaq.broker.replication=debug"))
    assert replication.isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("metaq.broker.broker").isEnabledFor(logging.INFO)
    control.set(LogLevels.parse("info"))
    assert not replication.isEnabledFor(logging.DEBUG)
    assert logging.getLogger("metaq.broker.broker").isEnabledFor(logging.INFO)


def test_loggers_that_nobody_uses_are_found() -> None:
    logging.getLogger("metaq.known.part")
    levels = LogLevels.parse("info,metaq.known=debug,metaq.known.part=debug,metaq.knwon=debug")
    assert unknown_loggers(levels) == ["metaq.knwon"]
