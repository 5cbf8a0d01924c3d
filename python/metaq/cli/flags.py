"""Flags that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from metaq.config.options import OPTIONS


class Format(StrEnum):
    """The form of results."""

    text = "text"
    json = "json"


def flag(name: str, *, metavar: str | None = None) -> Any:
    """Returns the flag of one option, with its help and default. A flag that is not given is None, so that
    the environment and the configuration file count."""
    option = OPTIONS[name]
    default = "" if option.default in (None, ()) else f" (default {option.default})"
    return typer.Option(
        f"--{name.replace('_', '-')}", help=f"{option.help}{default}", metavar=metavar, show_default=False
    )


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="Configuration file: TOML, or a broker.conf of RocketMQ.",
        metavar="FILE",
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set any option that `metaq config show` lists; repeatable.",
        metavar="NAME=VALUE",
        show_default=False,
    ),
]
NameServers = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        help="Name servers of the cluster (default METAQ_NAMESRV, or 127.0.0.1:9876).",
        metavar="HOST:PORT;…",
        show_default=False,
    ),
]
RegisterAddress = Annotated[
    str | None,
    typer.Option(
        "--register",
        help="Register of the cluster (default METAQ_REGISTER); without one, name servers are asked.",
        metavar="etcd://HOST:PORT,…",
        show_default=False,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", help="Name of the cluster (default DefaultCluster).", show_default=False),
]
MessagesPerSecond = Annotated[
    str | None,
    typer.Option(help="Messages per second; none removes the limit.", metavar="N|none", show_default=False),
]
BytesPerSecond = Annotated[
    str | None,
    typer.Option(
        help="Bytes per second, such as 50MB; none removes the limit.",
        metavar="SIZE|none",
        show_default=False,
    ),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="Text for people, or JSON for programs.")]
