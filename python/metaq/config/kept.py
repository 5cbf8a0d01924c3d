"""Values that operators changed at run time and that later starts use: `metaq config set --persist`.

They are in one small file in the folder of the store, which is replaced as a whole: after a power failure it
holds either all values from before the change or all from after it. A file that cannot be read stops the
start, because a start without a kept value could delete messages that should stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from metaq.config.options import OPTIONS
from metaq.config.sources import Config, Setting, Source
from metaq.durable import replace_file
from metaq.errors import CommandError, ConfigError
from metaq.private_files import whose

KEPT_FILE: Final = "options.json"
ORIGIN: Final = "config set --persist"
_BYTES_MAX: Final = 64 * 1024


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    options: dict[str, str]
    checksum: int
    """CRC-32 of the options as JSON in the order of their names."""


def kept_file(data: str | Path) -> Path:
    return Path(data).expanduser() / KEPT_FILE


def with_kept(config: Config) -> Config:
    """Adds the kept values in the folder of the store. Flags, --set and the environment win over them; they
    win over the configuration file. Raises ConfigError if the file cannot be used."""
    path = kept_file(config["data"])
    settings, notes = dict(config.settings), list(config.notes)
    for name, text in read_kept(path).items():
        option, given = OPTIONS[name], settings[name]
        setting = Setting(option, parsed(path, name, text), ORIGIN, Source.KEPT, beneath=given)
        if given.source < Source.KEPT:
            settings[name] = setting
        if given.source is Source.FILE and given.value != setting.value:
            notes.append(f"{name}={text} ({ORIGIN}) counts, and not {given.value} of {given.origin}")
        elif given.source > Source.KEPT:
            notes.append(f"{name}={text} ({ORIGIN}) does not count: {given.origin} sets {given.value}")
    return replace(config, settings=settings, notes=tuple(notes))


def parsed(path: Path, name: str, text: str) -> object:
    """Returns the value of a kept text. Raises ConfigError."""
    try:
        return OPTIONS[name].kind.parse(text)
    except ValueError as error:
        raise _damaged(path, f"{name}={text} {error}") from None


def read_kept(path: Path) -> dict[str, str]:
    """Returns the kept values by name, and nothing if none was ever kept. Raises ConfigError, or
    CommandError if this account may not read the file."""
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        # Whoever opens the store says what is wrong with its folder.
        return {}
    except PermissionError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", hint=whose(path, error)) from None
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    try:
        kept = msgspec.json.decode(content, type=_Kept)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    if kept.checksum != _checksum(kept.options):
        raise _damaged(path, "its checksum is wrong")
    for name in kept.options:
        if name not in OPTIONS or not OPTIONS[name].at_run_time:
            raise _damaged(path, f"{name[:64]!a} is not an option that can change at run time")
    return kept.options


def write_kept(path: Path, options: Mapping[str, str]) -> None:
    """Replaces the kept values durably. Raises OSError; the old values then stay."""
    ordered = dict(sorted(options.items()))
    content = msgspec.json.encode(_Kept(ordered, _checksum(ordered)))
    replace_file(path, msgspec.json.format(content, indent=2) + b"\n")


def _checksum(options: Mapping[str, str]) -> int:
    return zlib.crc32(msgspec.json.encode(dict(sorted(options.items()))))


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the options in {path} cannot be used: {why}",
        hint=f"they were set with `metaq {ORIGIN}`; restore the file, or remove it to start without them",
    )
