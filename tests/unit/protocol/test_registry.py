"""Every command has one code and one place where it is handled."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from types import ModuleType
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

import metaq.broker
import metaq.nameserver
import metaq.protocol
from metaq import _core
from metaq.protocol.command import Command, Permission, ResourceKind, commands
from metaq.protocol.dispatch import handled_by
from metaq.protocol.handling import never


def modules_of(package: ModuleType) -> list[ModuleType]:
    return [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]


def all_commands() -> list[type[Command]]:
    modules = {module.__name__ for module in modules_of(metaq.protocol)}
    return [command for command in commands() if command.__module__ in modules]


def handled_in(package: ModuleType) -> Counter[type[Command]]:
    """How many methods of the package's classes handle each command."""
    found: set[tuple[type[Command], object]] = set()
    for module in modules_of(package):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__:
                found |= {(command, getattr(kind, name)) for command, name in handled_by(kind)}
    return Counter(command for command, _ in found)


def test_codes_are_unique() -> None:
    codes = Counter(command.code for command in all_commands())
    assert [code for code, count in codes.items() if count > 1] == []


def test_hot_codes_agree_with_the_data_plane() -> None:
    assert {command.code for command in all_commands() if command.hot} == set(_core.HOT_CODES)


@pytest.mark.parametrize(
    ("package", "to"),
    [(metaq.nameserver, "nameserver"), (metaq.broker, "broker")],
    ids=["nameserver", "broker"],
)
def test_every_command_has_exactly_one_handler(package: ModuleType, to: str) -> None:
    handled = handled_in(package)
    asked = [command for command in all_commands() if command.to == to]
    assert [command.__name__ for command in asked if handled[command] == 0 and not command.hot] == []
    assert [command.__name__ for command, count in handled.items() if count > 1] == []
    assert [command.__name__ for command in handled if command.to != to] == []


def test_every_command_declares_its_permission_and_its_resources() -> None:
    for command in all_commands():
        assert command.permission in get_args(Permission), command.__name__
        if command.resources == "body":
            continue
        for field, kind in command.resources.items():
            assert field in command.__struct_fields__, f"{command.__name__} has no field {field}"
            assert kind in get_args(ResourceKind), command.__name__


def test_a_field_that_names_a_topic_or_a_group_is_declared_as_a_resource() -> None:
    """Requests of a server to its clients need no permission. The group of a producer and the template of a
    topic are not resources."""
    names = {"topic", "group", "consumer_group", "group_name"}
    for command in all_commands():
        if command.to == "client" or command.resources == "body":
            continue
        undeclared = names & set(command.__struct_fields__) - set(command.resources)
        assert not undeclared, f"{command.__name__}: {undeclared}"


def test_every_command_says_what_it_is_for() -> None:
    silent = [command.__name__ for command in all_commands() if not command.__doc__]
    assert [name for name in silent if name not in ("GetMaxOffset", "GetMinOffset")] == []


def test_what_never_applies_is_told_with_a_reason_and_is_no_command() -> None:
    assert {command.code for command in all_commands()}.isdisjoint(never.WHY)
    assert never.remark(513).startswith("request code 513 is not supported: MetaQ has no static topics")
    assert never.remark(4711) == "request code 4711 is not supported"


ANSWER = re.compile(r"[Bb]ody of the answer: (\w+)|[Bb]ody both ways: (\w+)")
WORDS = {"the", "a", "one", "seven", "stored", "properties"}
"""After which a docstring describes an answer without the name of a class."""
PLAIN_ANSWERS = {
    "GetTimerCheckPoint",
    "GetBrokerConfig",
    "GetNameServerConfig",
    "ViewMessageById",
    # Answers of clients, which `QuestionLimits` and the limits of frames bound.
    "GetConsumerRunningInfo",
    "ConsumeMessageDirectly",
}
"""Commands whose answers list nothing, and those that pass on what a client answers."""


def answer_body(command: type[Command]) -> str | None:
    """The name of the class, or the first word of its description."""
    found = ANSWER.search(command.__doc__ or "")
    return None if found is None else found[1] or found[2]


def lists(kind: object) -> bool:
    """Whether a value of this type holds a list or a table, however deep."""
    if get_origin(kind) in (list, dict, tuple, set, frozenset):
        return True
    if any(lists(part) for part in get_args(kind)):
        return True
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and any(map(lists, types_of(kind)))


def types_of(kind: type) -> list[object]:
    return list(get_type_hints(kind).values())


def test_every_command_whose_answer_lists_something_declares_its_bound() -> None:
    bodies = {
        name: kind
        for module in modules_of(metaq.protocol)
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
    }
    listing = []
    for command in all_commands():
        answer = answer_body(command)
        if answer is None or command.hot or command.to == "client" or command.__name__ in PLAIN_ANSWERS:
            continue
        assert answer in bodies or answer in WORDS, f"{command.__name__} answers with {answer}: what is it?"
        if answer in WORDS or lists(bodies[answer]):
            listing.append(command)
    assert len(listing) > 40
    assert [command.__name__ for command in listing if command.answer_max is None] == []


def test_every_answer_with_a_body_is_described() -> None:
    """The test above reads the descriptions."""
    silent = []
    for package in (metaq.broker, metaq.nameserver):
        for module in modules_of(package):
            for kind in vars(module).values():
                if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                    continue
                for command, name in handled_by(kind):
                    source = inspect.getsource(getattr(kind, name))
                    if re.search(r"Response\((.*, )?body=", source) and answer_body(command) is None:
                        silent.append(command.__name__)
    assert silent == []


def test_a_command_that_changes_something_does_not_end_with_its_connection() -> None:
    ending = [command for command in all_commands() if command.ends_with_connection]
    assert len(ending) > 30
    asking = ("describe", "cluster", "read")
    assert [command.__name__ for command in ending if command.permission not in asking] == [
        "ListUsers",
        "ListAccessRules",
    ]
