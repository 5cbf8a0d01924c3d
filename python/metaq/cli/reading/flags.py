"""Flags that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from metaq.cli.invocation import Format, current, read_format
from metaq.cli.reading.completions import complete_context, complete_group, complete_topic


def _namesrv(context: typer.Context, value: str | None) -> str | None:
    if value is not None and not context.resilient_parsing:
        current().namesrv = value
    return current().namesrv


def _context(context: typer.Context, value: str | None) -> str | None:
    if value is not None and not context.resilient_parsing:
        current().context = value
    return current().context


def _output(context: typer.Context, parameter: typer.CallbackParam, value: Format) -> Format:
    source = context.get_parameter_source(parameter.name or "")
    if source is not None and source.name == "DEFAULT":
        return current().output or value
    if not context.resilient_parsing:
        current().output = value
    return value


def _parse_format(text: str) -> Format:
    try:
        return read_format(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of table, json, csv") from None


def _complete_format(incomplete: str) -> list[str]:
    return [form.value for form in Format if form.value.startswith(incomplete)]


NameServers = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        help="Name servers of the cluster (default: those of the context, METAQ_NAMESRV, or 127.0.0.1:9876).",
        metavar="HOST:PORT;…",
        show_default=False,
        callback=_namesrv,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Named cluster, instead of the one of `metaq context use` or METAQ_CONTEXT.",
        metavar="NAME",
        show_default=False,
        callback=_context,
        autocompletion=complete_context,
    ),
]
Output = Annotated[
    Format,
    typer.Option(
        "-o",
        "--output",
        help="Form of the result: table for people, json or csv for programs.",
        metavar="table|json|csv",
        parser=_parse_format,
        callback=_output,
        show_default=False,
        autocompletion=_complete_format,
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
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the change and stop.")]
BrokerName = Annotated[
    str | None,
    typer.Option(
        "--broker",
        help="Only this broker: its name, which means its master, or its address (default: all masters).",
        metavar="NAME",
        show_default=False,
    ),
]
OffsetId = Annotated[
    str,
    typer.Argument(
        help="Offset id of the message, as `list` prints it.", metavar="OFFSET_ID", show_default=False
    ),
]


def topic_argument(help: str = "Name of the topic.") -> Any:
    """The argument for an existing topic; shells complete its name."""
    return typer.Argument(help=help, metavar="TOPIC", show_default=False, autocompletion=complete_topic)


def group_argument(help: str = "Name of the consumer group.") -> Any:
    """The argument for an existing group; shells complete its name."""
    return typer.Argument(help=help, metavar="GROUP", show_default=False, autocompletion=complete_group)
