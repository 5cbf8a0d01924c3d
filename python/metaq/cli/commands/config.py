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
    from metaq.cli.printing.output import print_json, print_table
    from metaq.config import load
    from metaq.config.kept import with_kept
    from metaq.config.option import written

    loaded = with_kept(load(assignments=assignments or (), file=config))
    for note in loaded.notes:
        typer.echo(f"metaq: {note}", err=True)
    if output is Format.json:
        print_json(
            {
                name: {
                    "value": setting.value,
                    "origin": setting.origin,
                    "section": setting.option.section,
                    "help": setting.option.help,
                }
                for name, setting in loaded.settings.items()
            }
        )
        return
    print_table(
        ("option", "value", "from"),
        [(name, written(setting.value) or "–", setting.origin) for name, setting in loaded.settings.items()],
    )


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
    from metaq.cli.printing.output import print_json
    from metaq.config import load

    directory = Path(load({"data": data}, assignments=assignments or (), file=config)["data"])
    written = [str(path) for path in asyncio.run(export_config(directory))]
    if output is Format.json:
        print_json({"written": written})
    elif written:
        typer.echo("\n".join(written))
    else:
        typer.echo(f"{directory} has no journal: its files in config/ are up to date")
