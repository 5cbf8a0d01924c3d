"""metaq cluster config get and set, which are also metaq config get and set: settings of running brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output

if TYPE_CHECKING:
    from metaq.admin import Admin


def get_settings(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Name or address of a broker, then settings; all of them if they are left out.",
            metavar="[BROKER] [KEY…]",
            show_default=False,
        ),
    ] = None,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Show the settings that brokers run with, and which of them can be changed.

    The names are RocketMQ's. Without a broker, all masters are asked.
    """
    from metaq.cli.printing.output import Column, print_rows
    from metaq.cli.reading.connection import connect

    rows: list[dict[str, Any]] = []
    with connect(namesrv) as admin:
        brokers, keys = _brokers_and_keys(admin, list(words or ()))
        for broker, changeable in brokers.items():
            values = admin.brokers.configuration(broker).values
            _check_known(broker, keys, values)
            rows += (
                {
                    "broker": broker,
                    "key": key,
                    "value": values[key],
                    "changeable": None if changeable is None else key in changeable,
                }
                for key in keys or sorted(values)
            )
    columns = [Column("key", "setting"), Column("value"), Column("changeable", "can be changed")]
    if len(brokers) > 1:
        columns.insert(0, Column("broker"))
    print_rows(output, rows, columns, empty="The broker reports no settings.")


def set_settings(
    broker: Annotated[
        str, typer.Argument(help="Name or address of the broker.", metavar="BROKER", show_default=False)
    ],
    assignments: Annotated[
        list[str], typer.Argument(help="Settings and values.", metavar="KEY=VALUE…", show_default=False)
    ],
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Change settings of a running broker.

    A MetaQ broker forgets the change when it stops; put it into its configuration file as well. An Apache
    broker writes the change into its file.
    """
    from metaq.cli.printing.output import Column, note, print_rows
    from metaq.cli.reading.connection import connect

    wanted = _assignments(assignments)
    with connect(namesrv) as admin:
        is_metaq = _changeable(admin, broker) is not None
        before = admin.brokers.configuration(broker).values
        _check_known(broker, list(wanted), before)
        after = admin.brokers.configure(broker, wanted).values
    rows = [{"broker": broker, "key": key, "old": before.get(key), "new": after.get(key)} for key in wanted]
    columns = [Column("key", "setting"), Column("old"), Column("new")]
    print_rows(output, rows, columns, empty="")
    note(
        f"{broker} forgets this when it stops; change its configuration file as well"
        if is_metaq
        else f"{broker} is an Apache broker: it has written this into its configuration file"
    )


def _assignments(words: list[str]) -> dict[str, str]:
    from metaq.errors import ConfigError

    wanted: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f'"{word}" is not a setting and a value', hint="write KEY=VALUE")
        wanted[key] = value
    return wanted


def _brokers_and_keys(admin: Admin, words: list[str]) -> tuple[dict[str, frozenset[str] | None], list[str]]:
    """The brokers to ask, each with the settings that can be changed, and the wanted settings. The first
    word is a broker if it is the address or the name of one."""
    masters = [broker.name for broker in admin.brokers.cluster().brokers if broker.is_master]
    if words and (":" in words[0] or words[0] in masters):
        return {words[0]: _changeable(admin, words[0])}, words[1:]
    return {name: _changeable(admin, name) for name in masters}, words


def _changeable(admin: Admin, broker: str) -> frozenset[str] | None:
    """The settings that can be changed while the broker runs; None if it is not MetaQ's and does not say."""
    return admin.brokers.changeable_settings(broker)


def _check_known(broker: str, keys: list[str], values: Any) -> None:
    import difflib

    from metaq.errors import CommandError

    for key in keys:
        if key not in values:
            near = difflib.get_close_matches(key, values, 2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`metaq config get {broker}` lists all"
            raise CommandError(f"{broker} has no setting {key}", hint=hint)
