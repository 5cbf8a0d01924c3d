"""metaq pipeline: jobs that move data into topics and out of them."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output

if TYPE_CHECKING:
    from metaq.pipelines import Pipeline, Plan, Progress, Report, Verification

app = group_of_commands("List and run data pipelines, and show those that run.")

Name = Annotated[str, typer.Argument(help="Name of the pipeline.", show_default=False)]
ConfigFile = Annotated[
    Path, typer.Option("--config", help="TOML file of the pipeline.", metavar="FILE", show_default=False)
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="Spark master: local[4], spark://host:7077, yarn or k8s://… (default: the one in the file).",
        metavar="MASTER",
        show_default=False,
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(
        "--environment",
        help="Archive of `metaq spark pack` for the executors of a cluster (default: the one in the file).",
        metavar="FILE",
        show_default=False,
    ),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        help="Serve /metrics, /livez and /readyz at this address; port 0 selects a free one.",
        metavar="HOST:PORT",
        show_default=False,
    ),
]

LEVELS = f"warning,{__name__}=info"
"""The log levels of a pipeline: warnings, and its progress."""
LINE_INTERVAL = 10
"""If standard error is not a terminal, every tenth report is printed."""


@app.command("list")
def list_pipelines(output: Output = Format.table) -> None:
    """List all pipelines."""
    from metaq.cli.printing.output import Column, print_rows
    from metaq.pipelines import PIPELINES

    rows = [{"name": name, "summary": entry.summary} for name, entry in PIPELINES.items()]
    print_rows(output, rows, (Column("name", "pipeline"), Column("summary", "does")), empty="")


@app.command()
def run(
    name: Name,
    config: ConfigFile,
    master: Master = None,
    environment: Environment = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask all servers and print the plan; change nothing.")
    ] = False,
    metrics_listen: MetricsListen = None,
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Allow other machines to read the metrics.")
    ] = False,
    output: Output = Format.table,
) -> None:
    """Run a pipeline until it is done, or until Ctrl-C or SIGTERM. The next run continues from there."""
    from metaq.pipelines.run_reports import reported

    pipeline = _load(name, config, master, environment)
    if dry_run:
        with _naming(config):
            plan = pipeline.plan()
        _print_plan(plan, output)
        return
    with (
        _naming(config),
        _stopped_by_signals() as stop,
        _reporting(name, output) as report,
        _measured(name, config, metrics_listen, report, is_open=insecure_listen) as (measured, metrics),
        reported(name, pipeline, config, measured, metrics) as sent,
    ):
        done = pipeline.run(sent, stop)
    if output is Format.table:
        typer.echo(f"{name} ended; {_line(done)}")


@app.command()
def status(
    runs: Annotated[bool, typer.Option("--runs", help="Also list earlier runs that are over.")] = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """List the pipelines and Spark queries that report to a cluster: state, rate, lag, last error.

    A pipeline whose reports are missing has the state unknown.
    """
    from metaq.cli.printing.output import print_rows
    from metaq.cli.printing.pipeline_tables import status_columns, status_row, table_row
    from metaq.cli.reading.connection import connect, report_failures

    with connect(namesrv, partial=True) as admin:
        found = admin.pipelines.list()
    row = table_row if output is Format.table else status_row
    print_rows(
        output,
        [row(report) for report in (found.reports if runs else found.current)],
        status_columns(),
        empty="No pipeline reports to this cluster. `metaq pipeline run` starts one.",
    )
    report_failures(found.failures)


@app.command()
def verify(
    name: Name,
    config: ConfigFile,
    master: Master = None,
    environment: Environment = None,
    limit: Annotated[int, typer.Option("--limit", help="Keys to print for each table.")] = 100,
    wait: Annotated[
        float,
        typer.Option("--wait", help="Seconds to keep comparing while rows differ."),
    ] = 0.0,
    output: Output = Format.table,
) -> None:
    """Compare the source of a pipeline with its copy and print the keys that differ.

    The exit code is 1 if any differ.
    """
    from metaq.errors import CommandError
    from metaq.pipelines import PIPELINES, Verifiable

    pipeline = _load(name, config, master, environment)
    if not isinstance(pipeline, Verifiable):
        able = [other for other, entry in PIPELINES.items() if entry.has_copy]
        raise CommandError(f"{name} has no copy to compare", hint=f"these have one: {', '.join(able)}")
    with _naming(config):
        found = pipeline.verify(limit, wait)
    _print_verification(found, output)
    if not found.is_same:
        raise typer.Exit(1)


@app.command()
def reread(
    name: Name,
    config: ConfigFile,
    table: Annotated[
        str, typer.Option("--table", help="DATABASE.TABLE.", metavar="TABLE", show_default=False)
    ],
    first: Annotated[
        int | None,
        typer.Option("--from", help="First value of the first key column.", show_default="no limit"),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--to", help="Last value of the first key column.", show_default="no limit"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many rows that is.")] = False,
    output: Output = Format.table,
) -> None:
    """Read a table of the source again, or a range of its keys, while everything else goes on.

    The running pipeline takes the request within a second; without one, the next run does.
    """
    from metaq.cli.printing.output import print_one
    from metaq.counts import counted
    from metaq.errors import CommandError
    from metaq.pipelines import PIPELINES, Rereadable

    pipeline = _load(name, config)
    if not isinstance(pipeline, Rereadable):
        able = [other for other, entry in PIPELINES.items() if entry.reads_again]
        raise CommandError(f"{name} cannot read again", hint=f"these can: {', '.join(able)}")
    rows = pipeline.reread(table, first, last, dry_run=dry_run)
    text = f"{table}: about {counted(rows, 'row')} {'would' if dry_run else 'will'} be read again"
    print_one(output, {"table": table, "rows": rows, "dry_run": dry_run}, text)


def _load(name: str, config: Path, master: str | None = None, environment: str | None = None) -> Pipeline:
    from metaq.errors import CommandError
    from metaq.pipelines import PIPELINES, RunsOnSpark, load

    _set_up_logging()
    pipeline = load(name).from_file(config)
    if master is None and environment is None:
        return pipeline
    if not isinstance(pipeline, RunsOnSpark):
        able = [other for other, entry in PIPELINES.items() if "spark" in entry.extra]
        flag = "--environment" if master is None else "--master"
        raise CommandError(
            f"{name} does not run on Spark and has no {flag}", hint=f"these do: {', '.join(able)}"
        )
    return pipeline.on(master, environment)


def _set_up_logging() -> None:
    """Logs to standard error as a server does. Unless the options say otherwise, only warnings are logged."""
    from metaq.config import load
    from metaq.server_logging import LogLevels, set_up

    options = load()
    levels = LEVELS if options.is_default("log_level") else options["log_level"]
    set_up(LogLevels.parse(levels), options["log_format"])


@contextmanager
def _naming(config: Path) -> Iterator[None]:
    """Names the TOML file if a name server or a broker does not answer: the address comes from there."""
    from metaq.errors import CommandError
    from metaq.protocol.errors import Unreachable

    try:
        yield
    except Unreachable as error:
        raise CommandError(
            str(error),
            hint=f"is the cluster running, and is its address the key namesrv of {config}?",
        ) from error


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yields an event that the first signal sets. A second signal ends the process at once."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: object) -> None:
        stop.set()
        for again, handler in before.items():
            signal.signal(again, handler)

    for number in before:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _reporting(name: str, output: Format) -> Iterator[Report]:
    if output is Format.json:
        from dataclasses import asdict

        from metaq.cli.printing.output import print_json_line

        yield lambda progress: print_json_line({"pipeline": name, **asdict(progress)})
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(f"{name}: starting") as status:
            yield lambda progress: status.update(f"{name}: {_line(progress)}")
    else:
        reports = 0

        def print_some(progress: Progress) -> None:
            nonlocal reports
            if reports % LINE_INTERVAL == 0:
                _print_line(f"{name}: {_line(progress)}")
            reports += 1

        yield print_some


@contextmanager
def _measured(
    name: str, config: Path, listen: str | None, report: Report, *, is_open: bool
) -> Iterator[tuple[Report, str | None]]:
    """Yields a report that also updates the metrics, and their address, if they are wanted; raises
    ConfigError."""
    if listen is None:
        yield report, None
        return
    from metaq.config.derive import require_private, resolve_host
    from metaq.config.kinds import split_endpoint
    from metaq.errors import ConfigError
    from metaq.pipelines.metrics_page import PipelineMetrics, served

    try:
        host, port = split_endpoint(listen)
    except ValueError as error:
        raise ConfigError(f"--metrics-listen {listen}: it {error}") from None
    address = resolve_host(host or "127.0.0.1")
    require_private(address, port, is_open=is_open)
    metrics = PipelineMetrics(name, config)

    def report_twice(progress: Progress) -> None:
        metrics.report(progress)
        report(progress)

    with served(metrics, address, port) as place:
        page = f"http://{place}/metrics"
        print(f"{name}: metrics at {page}", file=sys.stderr, flush=True)
        yield report_twice, page


def _print_line(text: str) -> None:
    """Prints a line to standard error, as JSON if the log is JSON."""
    import logging

    from metaq.config import load
    from metaq.server_logging import is_json

    if is_json(load()["log_format"], sys.stderr):
        logging.getLogger(__name__).info(text)
    else:
        print(text, file=sys.stderr, flush=True)


def _line(progress: Progress) -> str:
    from metaq.counts import counted

    lag = "unknown" if progress.lag_s is None else f"{progress.lag_s:.1f} s"
    details = ", ".join(f"{name} {value}" for name, value in progress.details.items() if value is not None)
    return (
        f"{progress.phase}, {counted(progress.rows, 'row')}, {counted(progress.bytes, 'byte')},"
        f" {progress.rows_per_second:,.0f} rows/s, lag {lag}{f', {details}' if details else ''}"
    )


def _print_plan(plan: Plan, output: Format) -> None:
    from metaq.cli.printing.output import print_one, print_table

    if output is not Format.table:
        record = {
            "facts": plan.facts,
            "checks": plan.checks,
            "tables": plan.tables,
            "warnings": plan.warnings,
        }
        print_one(output, record, "")
        return
    for name, value in plan.facts.items():
        typer.echo(f"{name:<8} {value}")
    for check in plan.checks:
        typer.echo(f"checked  {check}")
    if plan.tables:
        heads = list(plan.tables[0])
        numbers = [head for head in heads if isinstance(plan.tables[0][head], int)]
        print_table(heads, [[str(row[head]) for head in heads] for row in plan.tables], numbers)
    for warning in plan.warnings:
        typer.echo(f"warning: {warning}")


def _print_verification(found: Verification, output: Format) -> None:
    from dataclasses import asdict

    from metaq.cli.printing.output import print_one, print_table
    from metaq.counts import counted

    if output is not Format.table:
        print_one(output, {"same": found.is_same, **asdict(found)}, "")
        return
    heads = ("table", "source rows", "mirror rows", "quarantined", "chunks", "differ", "")
    rows = [
        (
            table.table,
            f"{table.source_rows:,}",
            f"{table.mirror_rows:,}",
            f"{table.quarantined:,}",
            str(table.chunks),
            str(table.differing_chunks),
            table.note if table.is_kept else "same" if table.is_same else table.note or "different",
        )
        for table in found.tables
    ]
    print_table(heads, rows, heads[1:6])
    for table in found.tables:
        for key in table.keys:
            typer.echo(f"{table.table} {key.key}: {key.what}")
        if table.more_keys:
            typer.echo(f"{table.table}: {counted(table.more_keys, 'more key')}")
