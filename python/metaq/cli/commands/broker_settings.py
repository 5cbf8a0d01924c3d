"""metaq config get, set and unset, which are also metaq cluster config …: settings of running brokers."""

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
    """Show the options that brokers run with, where each value comes from, and which of them can be changed.

    You may write RocketMQ's names, too, and an Apache broker has no others. Without a broker, all masters are
    asked.
    """
    from metaq.cli.printing.output import Column, print_rows
    from metaq.cli.reading.connection import connect

    rows: list[dict[str, Any]] = []
    with connect(namesrv) as admin:
        brokers, keys = _brokers_and_keys(admin, list(words or ()))
        for broker in brokers:
            settings = _settings(admin, broker)
            _check_known(broker, keys, settings)
            wanted = keys or sorted(key for key, row in settings.items() if not row.pop("is_second_name"))
            rows += ({"broker": broker, "key": key, **settings[key]} for key in wanted)
    for row in rows:
        row.pop("is_second_name", None)
    columns = [
        Column("key", "setting"),
        Column("value"),
        Column("origin", "from"),
        Column("changeable", "can be changed"),
    ]
    if len(brokers) > 1:
        columns.insert(0, Column("broker"))
    print_rows(output, rows, columns, empty="The broker reports no settings.")


def _settings(admin: Admin, broker: str) -> dict[str, dict[str, Any]]:
    """Returns all settings of a broker under each of their names."""
    values = admin.brokers.configuration(broker).values
    options = admin.brokers.options(broker)
    # An Apache broker says neither where its values come from nor what can be changed.
    unknown = None if options is None else False
    rows: dict[str, dict[str, Any]] = {
        key: {
            "value": value,
            "source": None,
            "origin": None,
            "next_start": None,
            "changeable": unknown,
            "is_second_name": False,
        }
        for key, value in values.items()
    }
    for option in options or ():
        row = {
            "value": option.value,
            "source": option.source,
            "origin": option.origin,
            "next_start": option.next_start,
            "changeable": option.at_run_time,
        }
        rows[option.name] = {**row, "is_second_name": False}
        if option.apache_name is not None:
            shown = values.get(option.apache_name, option.value)
            rows[option.apache_name] = {**row, "value": shown, "is_second_name": True}
    return rows


def set_settings(
    broker: Annotated[
        str,
        typer.Argument(
            help="Name or address of the broker, or address of a name server.",
            metavar="BROKER",
            show_default=False,
        ),
    ],
    assignments: Annotated[
        list[str], typer.Argument(help="Settings and values.", metavar="KEY=VALUE…", show_default=False)
    ],
    persist: Annotated[
        bool, typer.Option("--persist", help="Keep the values for later starts of the broker, too.")
    ] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Change settings of a running broker: all of them, or none.

    A MetaQ broker forgets a change when it stops. With --persist, the value counts for later starts, too:
    it wins over the configuration file, but not over flags, --set and environment variables. An Apache
    broker writes the change into its file. Each node of a group has its own values: name replicas by their
    address.
    """
    from metaq.cli.printing.output import Column, note, print_rows
    from metaq.cli.reading.connection import connect
    from metaq.errors import ConfigError

    wanted = _assignments(assignments)
    with connect(namesrv) as admin:
        before = _settings(admin, broker)
        is_metaq = admin.brokers.changeable_settings(broker) is not None
        is_nameserver = admin.brokers.is_nameserver(broker)
        if persist and not is_metaq:
            hint = "put it into its configuration" if is_nameserver else "an Apache broker keeps every change"
            raise ConfigError(f"{broker} does not know --persist", hint=hint)
        _check_known(broker, list(wanted), before)
        admin.brokers.configure(broker, wanted, persist=persist)
        after = _settings(admin, broker)
    rows = [
        {"broker": broker, "key": key, "old": before[key]["value"], "new": after[key]["value"]}
        for key in wanted
    ]
    columns = [Column("key", "setting"), Column("old"), Column("new")]
    print_rows(output, rows, columns, empty="")
    if not is_metaq and is_nameserver:
        note(f"{broker} is a name server: it forgets this when it stops")
    elif not is_metaq:
        note(f"{broker} is an Apache broker: it has written this into its configuration file")
    elif not persist:
        note(f"{broker} forgets this when it stops; --persist keeps it")


def unset_settings(
    broker: Annotated[
        str, typer.Argument(help="Name or address of the broker.", metavar="BROKER", show_default=False)
    ],
    keys: Annotated[list[str], typer.Argument(help="Settings.", metavar="KEY…", show_default=False)],
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Forget values that `config set` gave a running broker, kept ones too.

    The settings then have the values that the broker's flags, variables, file and defaults give them.
    """
    from metaq.cli.printing.output import Column, print_rows
    from metaq.cli.reading.connection import connect

    with connect(namesrv) as admin:
        before = _settings(admin, broker)
        _check_known(broker, keys, before)
        admin.brokers.unset(broker, keys)
        after = _settings(admin, broker)
    rows = [
        {
            "broker": broker,
            "key": key,
            "old": before[key]["value"],
            "new": after[key]["value"],
            "origin": after[key]["origin"],
        }
        for key in keys
    ]
    columns = [Column("key", "setting"), Column("old"), Column("new"), Column("origin", "from")]
    print_rows(output, rows, columns, empty="")


def _assignments(words: list[str]) -> dict[str, str]:
    from metaq.errors import ConfigError

    wanted: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f'"{word}" is not a setting and a value', hint="write KEY=VALUE")
        wanted[key] = value
    return wanted


def _brokers_and_keys(admin: Admin, words: list[str]) -> tuple[list[str], list[str]]:
    """The brokers to ask, and the wanted settings. The first word is a broker if it is the address or the
    name of one."""
    masters = [broker.name for broker in admin.brokers.cluster().brokers if broker.is_master]
    if words and (":" in words[0] or words[0] in masters):
        return [words[0]], words[1:]
    return masters, words


def _check_known(broker: str, keys: list[str], values: Any) -> None:
    import difflib

    from metaq.errors import CommandError

    for key in keys:
        if key not in values:
            near = difflib.get_close_matches(key, values, 2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`metaq config get {broker}` lists all"
            raise CommandError(f"{broker} has no setting {key}", hint=hint)
