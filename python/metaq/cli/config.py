"""metaq config."""

from __future__ import annotations

import typer

from metaq.cli.flags import Assignments, ConfigFile, Format, Output

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
def show(config: ConfigFile = None, assignments: Assignments = None, output: Output = Format.text) -> None:
    """Print every option, its value, and where the value was set."""
    from metaq.cli.output import print_json, print_table
    from metaq.config import load

    loaded = load(assignments=assignments or (), file=config)
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
        [(name, _text(setting.value), setting.origin) for name, setting in loaded.settings.items()],
    )


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ";".join(str(part) for part in value) or "–"
    return str(value)
