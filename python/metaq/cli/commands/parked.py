"""metaq parked: messages that consumers on this machine have parked on its disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import Output

if TYPE_CHECKING:
    from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, StoredRetry

app = group_of_commands("List the messages that consumers on this machine have parked, and replay them.")

Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        help="The local_directory of the consumers (default METAQ_CLIENT_DIRECTORY/parked).",
        show_default=False,
    ),
]


@app.command("list")
def list_parked(
    group: Annotated[str | None, typer.Argument(help="Only this consumer group.", show_default=False)] = None,
    directory: Directory = None,
    output: Output = Format.table,
) -> None:
    """List parked messages, oldest first."""
    from metaq.cli.printing.output import Rows

    with Rows(output, KEYS, _line, empty="nothing is parked here") as rows:
        for name, store in _stores(directory, group):
            for parked in store.rows():
                found = _document(name, parked)
                rows.print((name, parked), lambda found=found: found)  # type: ignore[misc]
            store.close()


@app.command()
def replay(
    group: Annotated[str, typer.Argument(help="Name of the consumer group.", show_default=False)],
    number: Annotated[
        list[int] | None,
        typer.Option("--number", help="Only the message with this number; repeatable.", show_default=False),
    ] = None,
    directory: Directory = None,
    output: Output = Format.table,
) -> None:
    """Make parked messages due now and reset their tries.

    The group's consumer on this machine takes them at once, or when it starts.
    """
    from metaq.cli.printing.output import print_one
    from metaq.counts import counted
    from metaq.errors import CommandError

    count = 0
    for _, store in _stores(directory, group):
        count += store.replay(number)
        store.close()
    if number and count < len(number):
        raise CommandError(f"{len(number) - count} of these numbers are not parked for {group}")
    text = f"{counted(count, 'parked message')} of {group} {'is' if count == 1 else 'are'} due now"
    print_one(output, {"group": group, "replayed": count}, text)


def _stores(directory: Path | None, group: str | None) -> list[tuple[str, LocalRetryStore]]:
    from metaq.client.consumer.options import client_directory
    from metaq.client.consumer.settlement.local_retry_store import LocalRetryStore, local_retry_files
    from metaq.errors import CommandError

    place = directory or client_directory() / "parked"
    found = local_retry_files(place)
    if group is not None:
        if group not in found:
            raise CommandError(
                f"nothing is parked for group {group} in {place}",
                hint="run the command on the consumer's machine, as its user, or give --directory",
            )
        found = {group: found[group]}
    return [(name, LocalRetryStore(path)) for name, path in found.items()]


KEYS = (
    *("group", "number", "id", "topic", "broker", "queue", "queue_offset", "attempts", "error"),
    *("parked_ms", "due_ms", "body_bytes"),
)


def _document(group: str, parked: StoredRetry) -> dict[str, object]:
    return {
        "group": group,
        "number": parked.number,
        "id": parked.id,
        "topic": parked.record.get("topic", parked.queue_topic),
        "broker": parked.broker,
        "queue": parked.queue_id,
        "queue_offset": parked.queue_offset,
        "attempts": parked.attempts,
        "error": parked.error,
        "parked_ms": parked.stored_ms,
        "due_ms": parked.due_ms,
        "body_bytes": parked.body_bytes,
    }


def _line(found: tuple[str, StoredRetry]) -> str:
    group, parked = found
    topic = parked.record.get("topic", parked.queue_topic)
    error = " ".join(parked.error.split())
    return f"{group} {parked.number} {parked.id} {topic} failed {parked.attempts} times here: {error}"
