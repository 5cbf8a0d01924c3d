"""metaq filter."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import Output
from metaq.cli.reading.option_flags import Assignments, ConfigFile

app = group_of_commands("List the functions that consumers can filter messages with.")


@app.command("list")
def list_functions(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders and modules to load, instead of those in the option filter_functions.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    output: Output = Format.table,
) -> None:
    """Load the filter functions as a broker with this configuration does, and list them."""
    import asyncio

    from metaq.cli.printing.output import Column, print_rows
    from metaq.config import load
    from metaq.config.derive import worker_settings

    loaded = load({"filter_functions": sources or None}, assignments=assignments or (), file=config)

    from metaq.broker.functions import describe_functions

    known = asyncio.run(describe_functions(worker_settings(loaded)))
    functions = [known[name] for name in sorted(known)]
    rows = [{"signature": function.signature, **_fields(function)} for function in functions]
    columns = (Column("signature", "call"), Column("module"), Column("doc", "description"))
    print_rows(output, rows, columns, empty="There are no filter functions.")


def _fields(function: object) -> dict[str, object]:
    import msgspec

    fields = msgspec.to_builtins(function)
    assert isinstance(fields, dict)
    return fields
