"""metaq config."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.commands.broker_settings import get_settings, set_settings, unset_settings
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import Output
from metaq.cli.reading.option_flags import Assignments, ConfigFile, flag

app = group_of_commands("Show the configuration, or hand a store back to RocketMQ.")
app.command("get")(get_settings)
app.command("set")(set_settings)
app.command("unset")(unset_settings)


@app.command()
def show(config: ConfigFile = None, assignments: Assignments = None, output: Output = Format.table) -> None:
    """Print every option, its value, and where the value was set."""
    from metaq.cli.printing.output import Column, print_one, print_rows
    from metaq.config import load
    from metaq.config.kept import with_kept

    loaded = with_kept(load(assignments=assignments or (), file=config))
    for note in loaded.notes:
        typer.echo(f"metaq: {note}", err=True)
    known = {
        name: {
            "value": setting.value,
            "origin": setting.origin,
            "section": setting.option.section,
            "help": setting.option.help,
        }
        for name, setting in loaded.settings.items()
    }
    if output is Format.json:
        print_one(output, known, "")
        return
    columns = (Column("option"), Column("value", show=_text), Column("origin", "from"))
    print_rows(output, [{"option": name, **row} for name, row in known.items()], columns, empty="")


@app.command()
def export(
    data: Annotated[str | None, flag("data", metavar="DIR")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    output: Output = Format.table,
) -> None:
    """Write a stopped broker's topics, groups and offsets as RocketMQ's files.

    The files in config/ are then what counts: Apache's broker can take over the directory, and MetaQ reads
    them when it starts again. The journal is moved aside.
    """
    import asyncio
    from pathlib import Path

    from metaq.broker.state.apache_files import export_config
    from metaq.cli.printing.output import print_one
    from metaq.config import load

    directory = Path(load({"data": data}, assignments=assignments or (), file=config)["data"])
    written = [str(path) for path in asyncio.run(export_config(directory))]
    text = written or [f"{directory} has no journal: its files in config/ are up to date"]
    print_one(output, {"written": written}, text)


def _text(value: object) -> str:
    from metaq.config.option import written

    return written(value) or "–"
