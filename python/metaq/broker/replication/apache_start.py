"""Decides, before a store is opened, whether its broker copies an Apache master.

A file in the store's directory says what the directory is: an unfinished copy of an Apache master, which must
not serve clients by mistake, or the store of a broker that has taken over, which never copies again. The file
is on disk before the first byte of the log is, and is replaced before the broker serves the first client.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from metaq.broker.options import BrokerOptions
from metaq.broker.replication.apache_move import first_look
from metaq.broker.replication.apache_source import MasterFacts
from metaq.broker.state.delay_progress import parse_levels
from metaq.durable import replace_file
from metaq.errors import CommandError, ConfigError
from metaq.metadata import MetadataDamaged
from metaq.protocol.errors import Refused, Unreachable

_log = logging.getLogger(__name__)

FILE_NAME: Final = "apache_move.json"
FORMAT_VERSION: Final = 1
FILE_BYTES_MAX: Final = 64 * 1024
REACH_TIMEOUT_S: Final = 8.0
"""How long a start waits for the Apache master to answer."""

_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class MoveMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    version: int
    master: _Text
    """The `host:port` for clients of the Apache master."""
    cluster: _Text
    name: _Text
    taken_over: bool = False
    """This broker is master in place of the Apache master, once and for all."""


@dataclass(frozen=True, slots=True)
class ApacheCopy:
    """A copy of an Apache master that begins or goes on."""

    mark: MoveMark
    facts: MasterFacts | None
    """The master's settings; None if a copy goes on whose master does not answer."""


def read_mark(directory: Path) -> MoveMark | None:
    """Returns the content of the file, None without a file. Raises MetadataDamaged or PermissionError."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        mark = msgspec.json.decode(content, type=MoveMark)
        if mark.version != FORMAT_VERSION:
            raise ValueError(f"its version is {mark.version}; this MetaQ reads version {FORMAT_VERSION}")
        return mark
    except FileNotFoundError:
        return None
    except PermissionError:
        # Nothing is damaged: the files belong to another account.
        raise
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise MetadataDamaged(
            f"{path} cannot be read: {error}",
            hint="it says whether this broker has taken over from its Apache master. If it has, write "
            '"taken_over":true there; if not, empty the directory and copy again',
        ) from error


def write_mark(directory: Path, mark: MoveMark) -> None:
    """Returns when the file survives a power failure. Raises OSError."""
    replace_file(directory / FILE_NAME, msgspec.json.encode(mark) + b"\n")


async def plan_copy(options: BrokerOptions) -> ApacheCopy | None:
    """Returns the copy that this start begins or goes on with; None for a broker that serves clients.

    Raises ConfigError if the settings do not fit the directory or the master, CommandError if the master of a
    new copy cannot be reached, or MetadataDamaged.
    """
    directory, address = Path(options.store.directory), options.apache_master
    mark = await asyncio.to_thread(read_mark, directory)
    if address is None:
        if mark is not None and not mark.taken_over:
            raise ConfigError(
                f"{directory} is an unfinished copy of the Apache master {mark.master}, so it serves nobody",
                hint=f"start with --apache-master {mark.master} and then run `metaq broker take-over`, or "
                "use another directory",
            )
        return None
    if mark is not None and mark.taken_over:
        _log.warning(
            "apache_master=%s has no effect any more: this broker has taken over from %s",
            address,
            mark.master,
        )
        return None
    await asyncio.to_thread(_check_directory, directory, mark, options)
    facts = await _reach(address, options, goes_on=mark is not None)
    if facts is not None:
        check_settings(facts, options)
    copied = MoveMark(FORMAT_VERSION, address, options.broker.cluster, options.broker.name)
    if copied != mark:
        await asyncio.to_thread(write_mark, directory, copied)
    return ApacheCopy(copied, facts)


def _check_directory(directory: Path, mark: MoveMark | None, options: BrokerOptions) -> None:
    settings = options.broker
    if mark is not None and (mark.cluster, mark.name) != (settings.cluster, settings.name):
        raise ConfigError(
            f"{directory} is a copy of broker {mark.name} of cluster {mark.cluster}, not of "
            f"{settings.name} of {settings.cluster}",
            hint="use an empty directory",
        )
    if mark is None:
        for folder in ("commitlog", "journal"):
            if any((directory / folder).glob("*")):
                raise ConfigError(
                    f"{directory / folder} has files already, and they are not a copy of "
                    f"{options.apache_master}",
                    hint="use an empty directory for the copy",
                )


async def _reach(address: str, options: BrokerOptions, *, goes_on: bool) -> MasterFacts | None:
    """Asks the master for its settings. A copy that `goes_on` may wait for its master, and if that is lost
    for good, it can still take over by force."""
    problem = f"no answer within {REACH_TIMEOUT_S:g} s"
    try:
        async with asyncio.timeout(REACH_TIMEOUT_S):
            return await first_look(address, options.store.commit_log_file_bytes)
    except (Unreachable, Refused) as error:
        problem = str(error)
    except TimeoutError:
        pass
    if goes_on:
        _log.warning("the Apache master %s cannot be reached now: %s", address, problem)
        return None
    raise CommandError(
        f"the Apache master {address} cannot be reached: {problem}",
        hint="check --apache-master: it is the master's address for clients (listenPort), not haListenPort",
    )


def check_settings(facts: MasterFacts, options: BrokerOptions) -> None:
    """Raises ConfigError unless this broker can take the place of the master."""
    for option, theirs, ours in (
        ("name", facts.broker_name, options.broker.name),
        ("cluster", facts.cluster_name, options.broker.cluster),
    ):
        if theirs != ours:
            raise ConfigError(
                f"{option}={ours} differs from {theirs[:128]!a} of the Apache master {options.apache_master}",
                hint=f"give this broker the same {option}, because clients look for it",
            )
    ours_max, theirs_max = options.store.message_size_bytes_max, facts.message_size_bytes_max
    if ours_max < theirs_max:
        raise ConfigError(
            f"message_size_bytes_max={ours_max} is less than maxMessageSize={theirs_max} of the master",
            hint=f"use --set message_size_bytes_max={theirs_max}",
        )
    if _levels(facts.delay_levels) not in (None, options.store.delay_levels_ms):
        raise ConfigError(
            "delay_levels differ from messageDelayLevel of the Apache master, so messages would be delayed "
            "by another time",
            hint=f'use --set delay_levels="{facts.delay_levels[:512]}"',
        )


def _levels(text: str) -> tuple[int, ...] | None:
    try:
        return parse_levels(text) or None
    except ValueError as error:
        raise ConfigError(f"messageDelayLevel of the Apache master cannot be read: {error}") from None
