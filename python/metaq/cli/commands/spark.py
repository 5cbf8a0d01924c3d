"""metaq spark: what a Spark cluster needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import Output

app = group_of_commands("Prepare Spark clusters for pipelines and queries.")

MIB = 1 << 20


@app.command()
def pack(
    file: Annotated[
        Path, typer.Argument(help="The archive to write; it ends in .tar.gz.", metavar="FILE")
    ] = Path("metaq-environment.tar.gz"),
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            help="Pack only this package, what it needs, and what executors need at least. Repeat it for"
            " several packages (default: everything that is installed).",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Pack the Python environment of this command for executors of a Spark cluster that do not have it.

    The archive holds the interpreter and the installed packages, without PySpark, which the workers have.
    Name it as `environment` in the section [spark] of a pipeline, or give it to `metaq.spark.session`.
    """
    from dataclasses import asdict

    from metaq.cli.printing.output import print_one
    from metaq.counts import counted
    from metaq.spark.packing import pack as write

    with _progress(file) as report:
        packed = write(file, packages=package or (), report=report)
    for name in packed.left_out:
        typer.echo(f"metaq: {name} is installed from a folder of sources and was left out", err=True)
    manifest = asdict(packed.manifest)
    record = {
        "file": str(packed.file),
        "bytes": packed.size_bytes,
        "unpacked_bytes": packed.unpacked_bytes,
        "files": packed.files,
        "sha256": packed.sha256,
        **manifest,
        "left_out": list(packed.left_out),
    }
    sizes = f"{packed.size_bytes / MIB:,.0f} MiB, unpacked {packed.unpacked_bytes / MIB:,.0f} MiB"
    text = (
        f"{packed.file}: {sizes} in {counted(packed.files, 'file')}, with Python {packed.manifest.python} for"
        f" {packed.manifest.system}",
        f"sha256 {packed.sha256}",
    )
    print_one(output, record, text)


@contextmanager
def _progress(file: Path) -> Iterator[Callable[[int, int], None]]:
    """Yields a report. A terminal shows every one, anything else a line for each tenth."""

    def text(done_bytes: int, total_bytes: int) -> str:
        return f"packing {file}: {done_bytes / MIB:,.0f} of {total_bytes / MIB:,.0f} MiB"

    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(f"packing {file}") as status:
            yield lambda done_bytes, total_bytes: status.update(text(done_bytes, total_bytes))
        return
    tenths = 0

    def print_tenth(done_bytes: int, total_bytes: int) -> None:
        nonlocal tenths
        if total_bytes and done_bytes * 10 // total_bytes > tenths:
            tenths = done_bytes * 10 // total_bytes
            typer.echo(text(done_bytes, total_bytes), err=True)

    yield print_tenth
