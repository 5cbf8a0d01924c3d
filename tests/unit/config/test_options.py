"""The table of options is complete: every setting has one, and every one has help, a kind and a default."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from metaq.config.kinds import Bytes, Choice, Flag, Number, Seconds, Text
from metaq.config.option import SECTIONS, SETTINGS, Option
from metaq.config.options import OPTIONS

# Fields that follow from options of another name, see derive.py.
DERIVED = {
    "store": {"delay_levels_ms", "directory", "replicated"},
    "server": {"host", "port", "also_old_port"},
    "broker": {"store_host", "stands_in"},
    "nameserver": {"answer_bytes_max"},
}
TYPES: dict[type, type] = {Bytes: int, Number: int, Flag: bool, Seconds: float, Text: str, Choice: str}


@pytest.mark.parametrize("section", SETTINGS)
def test_every_field_of_the_settings_has_an_option(section: str) -> None:
    fields = {field.name for field in dataclasses.fields(SETTINGS[section])} - DERIVED[section]
    assert fields <= {option.name for option in OPTIONS.values() if option.section == section}


@pytest.mark.parametrize("section", SETTINGS)
def test_an_option_has_the_type_and_default_of_its_field(section: str) -> None:
    hints = typing.get_type_hints(SETTINGS[section])
    for field in dataclasses.fields(SETTINGS[section]):
        if field.name in DERIVED[section]:
            continue
        option, hint = OPTIONS[field.name], hints[field.name]
        if typing.get_origin(hint) is typing.Literal:
            assert isinstance(option.kind, Choice) and option.kind.words == typing.get_args(hint)
        else:
            assert TYPES[type(option.kind)] is hint, field.name
        if field.default is not dataclasses.MISSING:
            assert option.default == field.default


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_an_option_explains_itself_and_accepts_its_own_default(option: Option) -> None:
    assert option.section in SECTIONS
    assert option.help.endswith(".") and len(option.help) <= 100
    assert option.kind.describe()
    if option.default is not None:
        assert option.kind.parse(option.default) == option.default
        written = ";".join(option.default) if isinstance(option.default, tuple) else str(option.default)
        assert option.kind.parse(written) == option.default


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("16k", 16384),
        ("16K", 16384),
        ("1MiB", 2**20),
        ("1 MB", 2**20),
        ("2g", 2**31),
        ("1_000", 1000),
        ("7B", 7),
    ],
)
def test_sizes_take_suffixes(text: str, size: int) -> None:
    assert Bytes(0, 2**40).parse(text) == size


@pytest.mark.parametrize("text", ["", "k", "1x", "-1", "1.5M", "0x10", "1e6"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size from 0 B to 1 TiB"):
        Bytes(0, 2**40).parse(text)


@pytest.mark.parametrize("raw", [True, "true", 1.0, "1.0", "", -1, 11])
def test_what_is_no_number_in_limits_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="must be a whole number from 0 to 10"):
        Number(0, 10).parse(raw)


@pytest.mark.parametrize("raw", ["nan", "inf", "x", True, None, 61])
def test_what_is_no_time_in_limits_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="must be seconds from 10 to 60"):
        Seconds(10, 60).parse(raw)
