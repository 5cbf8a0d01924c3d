"""metaq bench: measures a cluster from this machine, with the Python client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import NameServers, Output, topic_argument
from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq.cli.work.load import Measured

app = group_of_commands("Measure how fast a cluster stores and delivers messages.")

Topic = Annotated[str, topic_argument("Topic to use. Its consumers get the messages too.")]
Size = Annotated[int, typer.Option(help="Bytes of a body.", min=1, max=4 << 20)]
Messages = Annotated[
    int | None, typer.Option(help="Stop after this many messages.", min=1, show_default=False)
]
Seconds = Annotated[float, typer.Option(help="Stop after this many seconds.", min=0.1, max=86_400)]
Rate = Annotated[
    float | None,
    typer.Option(help="Messages per second in all (default: no limit).", min=0.01, show_default=False),
]
Threads = Annotated[int, typer.Option(help="Threads, each waiting for its answers.", min=1, max=1024)]
Buffered = Annotated[
    bool, typer.Option("--buffered", help="Send in batches from a buffer, as `send_soon` does.")
]


@app.command()
def produce(
    topic: Topic,
    size: Size = 128,
    messages: Messages = None,
    seconds: Seconds = 10,
    rate: Rate = None,
    threads: Threads = 16,
    buffered: Buffered = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Send messages and measure how long the acknowledgements take."""
    from metaq.cli.reading.connection import name_servers
    from metaq.cli.work.load import Load, send_load

    load = Load(topic, size, messages, seconds, rate, threads, buffered)
    _print([send_load(name_servers(namesrv), load)], output)


@app.command()
def consume(
    topic: Topic,
    group: Annotated[str, typer.Option(help="Consumer group; it keeps its place.")] = "metaq-bench",
    messages: Messages = None,
    seconds: Seconds = 10,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Consume messages, from the earliest on for a new group, and measure how old they are.

    It stops when nothing has come for two seconds. The age needs clocks that agree.
    """
    from metaq.cli.reading.connection import name_servers
    from metaq.cli.work.load import receive_load

    _print([receive_load(name_servers(namesrv), topic, group, messages, seconds)], output)


@app.command()
def run(
    topic: Topic,
    size: Size = 128,
    messages: Messages = None,
    seconds: Seconds = 10,
    rate: Rate = None,
    threads: Threads = 16,
    buffered: Buffered = False,
    namesrv: NameServers = None,
    output: Output = Format.table,
) -> None:
    """Send and consume at the same time, and measure the way from end to end."""
    from metaq.cli.reading.connection import name_servers
    from metaq.cli.work.load import Load, send_and_receive

    load = Load(topic, size, messages, seconds, rate, threads, buffered)
    _print(send_and_receive(name_servers(namesrv), load), output)


def _print(measured: list[Measured], output: Format) -> None:
    from metaq.cli.printing.formats import plain, rate, size, span
    from metaq.cli.printing.output import Column, print_rows

    columns = (
        Column("what"),
        Column("messages", right=True),
        Column("failed", right=True),
        Column("messages_per_second", "rate", show=rate, right=True),
        Column("bytes_per_second", "bytes/s", show=lambda value: size(round(value)), right=True),
        *(
            Column(f"{name}_ms", name, show=span, right=True, is_optional=name == "p999")
            for name in ("p50", "p90", "p99", "p999", "max")
        ),
    )
    print_rows(output, [one.record() for one in measured], columns, empty=plain(None))
    failures = [one.first_failure for one in measured if one.first_failure]
    if failures:
        raise CommandError(f"some messages were not sent: {failures[0]}")
