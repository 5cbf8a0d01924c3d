"""The options of a running broker: their values and sources, and changes while it runs.

The table of options says what can change (`metaq.config.option`). A change is checked as a start checks it.
It counts until the broker stops, or is kept for later starts as well (`metaq.config.kept`).
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol

from metaq._core import Store
from metaq.broker.options import BrokerOptions
from metaq.broker.state.runtime_switches import Switches
from metaq.config.derive import check_disk_levels
from metaq.config.kept import ORIGIN, kept_file, read_kept, write_kept
from metaq.config.option import Change, Option, written
from metaq.config.options import OPTIONS
from metaq.config.sources import Setting, Source
from metaq.config.upstream import SAME
from metaq.errors import ConfigError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.options import OptionSource, OptionState
from metaq.protocol.errors import Refused
from metaq.protocol.handling.slow_requests import SlowRequests
from metaq.server_logging import LogLevels, level_control, unknown_loggers

NOW: Final = "config set, until the next start"
VALUE_CHARACTERS_MAX: Final = 4_096
SOURCES: Final[dict[Source, OptionSource]] = {
    Source.DEFAULT: "default",
    Source.FILE: "file",
    Source.KEPT: "kept",
    Source.ENVIRONMENT: "environment",
    Source.SET: "set",
    Source.FLAG: "flag",
}
APACHE_NAMES: Final = {option: key for key, (option, _) in SAME.items()}
"""Our option → the key by which RocketMQ's tools know it."""


class Changed(Protocol):
    """The parts of a node that options change."""

    options: BrokerOptions
    store: Store
    switches: Switches
    slow_requests: SlowRequests


@dataclass(frozen=True, slots=True)
class Changes:
    """Checked changes of one command; nothing can refuse them any more but the disk."""

    values: Mapping[str, Any]
    """The values from now on."""
    kept: Mapping[str, str]
    """All values that are kept afterwards."""
    settings: Mapping[str, Setting]
    """The changed options that have a source of their own afterwards."""

    @property
    def of_node(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if OPTIONS[name].change is Change.NODE}

    @property
    def of_master(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if OPTIONS[name].change is Change.MASTER}


class RunTimeOptions:
    """The options of one node, whatever its role."""

    def __init__(self, node: Changed) -> None:
        self._node = node
        self._file = kept_file(node.options.store.directory)
        self._kept: dict[str, str] = read_kept(self._file)
        self._settings = _settings(node.options)
        self._now: dict[str, Any] = {}
        """The values that count until the next start only."""
        self.one_at_a_time = asyncio.Lock()

    def states(self) -> list[OptionState]:
        return [self.state(name) for name in OPTIONS]

    def state(self, name: str) -> OptionState:
        setting, base = self._settings[name], self._base(name)
        is_now = name in self._now
        next_start = written(base.value)
        if name in self._kept and base.source < Source.KEPT:
            next_start = self._kept[name]
        return OptionState(
            name,
            written(self._now[name] if is_now else setting.value),
            "now" if is_now else SOURCES[setting.source],
            NOW if is_now else setting.origin,
            OPTIONS[name].at_run_time,
            next_start,
        )

    def value(self, name: str) -> Any:
        return self._now.get(name, self._settings[name].value)

    def check(
        self, values: Mapping[str, str], forget: tuple[str, ...] = (), *, persist: bool = False
    ) -> Changes:
        """Returns the changes of one command under the names of the options. Raises Refused."""
        changed: dict[str, Any] = {}
        settings: dict[str, Setting] = {}
        kept = dict(self._kept)
        for key, text in values.items():
            option = changeable(key)
            value = parsed(key, option, text)
            base = self._base(option.name)
            changed[option.name] = value
            if not persist:
                continue
            if base.source > Source.KEPT:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"{option.name} cannot be kept for later starts: {base.origin} sets "
                    f"{written(base.value)[:128]} at each start. Change that, and leave --persist out here",
                )
            kept[option.name] = written(value)
            settings[option.name] = Setting(option, value, ORIGIN, Source.KEPT, beneath=base)
        for key in forget:
            option = changeable(key)
            base = settings[option.name] = self._base(option.name)
            changed[option.name] = base.value
            kept.pop(option.name, None)
        self._check_together(changed)
        return Changes(changed, kept, settings)

    async def keep(self, changes: Changes) -> None:
        """Writes the kept values before anything changes. Raises Refused if the disk does not take them."""
        if changes.kept == self._kept:
            return
        try:
            await asyncio.to_thread(write_kept, self._file, changes.kept)
        except OSError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{self._file} cannot be written ({error.strerror or error}), so nothing was changed. "
                "Without --persist the change needs no disk",
            ) from None
        self._kept = dict(changes.kept)

    async def apply(self, changes: Changes) -> None:
        """Makes the changes count, apart from those of the master's parts."""
        node = self._node
        self._now |= changes.values
        for name, setting in changes.settings.items():
            self._settings[name] = setting
            self._now.pop(name, None)
        node.options = _with_values(node.options, changes.values)
        if any(OPTIONS[name].section == "store" for name in changes.values):
            await asyncio.to_thread(node.store.set_retention, node.options.store)
        if (levels := changes.values.get("log_level")) is not None:
            level_control.set(LogLevels.parse(levels))
        if (limit_ms := changes.values.get("slow_request_ms")) is not None:
            node.slow_requests.limit_ms = limit_ms
        node.switches.server_side_reset = node.options.server_side_reset
        node.switches.store_replies = node.options.store_replies

    def _base(self, name: str) -> Setting:
        """Returns the setting without a kept value."""
        setting = self._settings[name]
        return setting.beneath or setting

    def _check_together(self, changed: Mapping[str, Any]) -> None:
        levels = ("disk_clean_percent", "disk_force_clean_percent", "disk_refuse_percent")
        try:
            check_disk_levels(*(changed.get(name, self.value(name)) for name in levels))
        except ConfigError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{error}; {error.hint}") from None


def option_of(key: str) -> Option | None:
    """Returns the option with this name, ours or RocketMQ's."""
    return OPTIONS.get(SAME[key][0] if key in SAME else key)


def changeable(key: str) -> Option:
    """Returns an option that can change at run time, by our name or RocketMQ's. Raises Refused."""
    option = option_of(key)
    if option is not None and option.at_run_time:
        return option
    names = [name for name, row in OPTIONS.items() if row.at_run_time]
    if option is None and (near := difflib.get_close_matches(key, [*names, *SAME], 1)):
        raise Refused(
            ResponseCode.NO_PERMISSION, f"there is no setting {key[:64]!a}; did you mean {near[0]}?"
        )
    raise Refused(
        ResponseCode.NO_PERMISSION,
        f"setting {key[:64]!a} cannot be changed while the broker runs ({', '.join(names)} can): "
        "change its configuration and restart it",
    )


def parsed(key: str, option: Option, text: str) -> Any:
    """Returns the value of an option. Raises Refused."""
    if len(text) > VALUE_CHARACTERS_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the value of {option.name} has {len(text)} characters, the limit is {VALUE_CHARACTERS_MAX}",
        )
    try:
        value = option.kind.parse(SAME[key][1](text) if key in SAME else text)
    except ValueError as error:
        reason = str(error) if str(error).startswith("must") else f"must be {option.kind.describe()}"
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{key}={text[:128]!a} {reason}") from None
    if option.name == "log_level" and (unknown := unknown_loggers(LogLevels.parse(str(value)))):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"log_level: there is no logger {unknown[0][:128]}")
    return value


def concerns_node(keys: Iterable[str]) -> bool | None:
    """Returns whether all options belong to the node itself, or none does; None if some do."""
    own = {option is not None and option.change is Change.NODE for option in map(option_of, keys)}
    return own.pop() if len(own) == 1 else None if own else False


def _with_values(options: BrokerOptions, values: Mapping[str, Any]) -> BrokerOptions:
    """Returns the options with changed values, wherever their fields are."""
    own = {field.name for field in fields(options)}
    of_store = {name: value for name, value in values.items() if OPTIONS[name].section == "store"}
    return replace(
        options,
        store=replace(options.store, **of_store),
        **{name: value for name, value in values.items() if name in own and name not in of_store},
    )


def _settings(options: BrokerOptions) -> dict[str, Setting]:
    """Returns the settings of the start; for a broker without a configuration, the values of its options."""
    if options.settings:
        return dict(options.settings)
    parts = {"store": options.store, "server": options.server, "broker": options.broker}
    return {
        name: Setting(
            option,
            getattr(parts.get(option.section), name, getattr(options, name, option.default)),
            "default",
        )
        for name, option in OPTIONS.items()
    }
