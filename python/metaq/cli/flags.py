"""Flags that several commands share, with the help and default of the option each of them sets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from metaq.config.options import OPTIONS


class Format(StrEnum):
    """How results are written."""

    text = "text"
    json = "json"


def flag(name: str, *, metavar: str | None = None) -> Any:
    """The flag of one option. It is None where not given, so that the other sources count."""
    option = OPTIONS[name]
    default = "" if option.default in (None, ()) else f" (default {option.default})"
    return typer.Option(
        f"--{name.replace('_', '-')}", help=f"{option.help}{default}", metavar=metavar, show_default=False
    )


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", help="TOML file, or broker.conf of RocketMQ.", metavar="FILE", show_default=False
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Any option of `metaq config show`.", metavar="NAME=VALUE", show_default=False
    ),
]
NameServers = Annotated[str | None, flag("namesrv", metavar="HOST:PORT;…")]
MessagesPerSecond = Annotated[
    str | None,
    typer.Option(help="Messages per second, or none.", metavar="N|none", show_default=False),
]
BytesPerSecond = Annotated[
    str | None,
    typer.Option(help="Bytes per second such as 50MB, or none.", metavar="SIZE|none", show_default=False),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="For people or for programs.")]
