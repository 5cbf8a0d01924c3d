"""metaq context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.completions import complete_context
from metaq.cli.reading.flags import ClusterName, Output, RegisterAddress, Yes
from metaq.cli.reading.questions import confirm
from metaq.errors import CommandError

if TYPE_CHECKING:
    from metaq.cli.reading.contexts import Context, Contexts

EMPTY = "There is no context. `metaq context set NAME --namesrv HOST:PORT` makes one."

app = group_of_commands("Name clusters, and choose the one that commands ask.")

Name = Annotated[
    str, typer.Argument(help="Name of the context.", show_default=False, autocompletion=complete_context)
]


@app.command("list")
def list_contexts(output: Output = Format.table) -> None:
    """List all contexts; the one in use has a star."""
    from metaq.cli.printing.output import Column, print_rows
    from metaq.cli.reading.connection import context_in_use
    from metaq.cli.reading.contexts import read_contexts

    contexts = read_contexts()
    chosen = context_in_use()
    in_use = None if chosen is None else chosen[0]
    rows = [
        {"name": name, "in_use": name == in_use, **_public(context)}
        for name, context in sorted(contexts.contexts.items())
    ]
    columns = (
        Column("in_use", " ", show=lambda star: "*" if star else ""),
        Column("name"),
        Column("namesrv", "name servers"),
        Column("cluster", is_optional=True),
        Column("register", is_optional=True),
        Column("access_key", "access key", is_optional=True),
    )
    print_rows(
        output,
        rows,
        columns,
        empty=EMPTY,
    )


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the context (default: the one in use).",
            show_default=False,
            autocompletion=complete_context,
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Show a context; its secret stays hidden."""
    from metaq.cli.printing.formats import plain
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.connection import context_in_use

    chosen = context_in_use(name)
    if chosen is None:
        raise CommandError("no context is in use", hint="`metaq context use NAME` chooses one")
    record = {"name": chosen[0], **_public(chosen[1])}
    print_one(output, record, (f"{key.replace('_', ' '):<12}{plain(value)}" for key, value in record.items()))


@app.command("set")
def set_context(
    name: Name,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv", help="Name servers of the cluster.", metavar="HOST:PORT;…", show_default=False
        ),
    ] = None,
    cluster: ClusterName = None,
    register: RegisterAddress = None,
    access_key: Annotated[
        str | None, typer.Option(help="User of a cluster with access control.", show_default=False)
    ] = None,
    secret_key_file: Annotated[
        str | None,
        typer.Option(
            help="File with the password of that user; - reads standard input.",
            metavar="FILE|-",
            show_default=False,
        ),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use this context from now on.")] = False,
    output: Output = Format.table,
) -> None:
    """Make a context, or change the given parts of one. The first one is in use at once."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.contexts import Context, contexts_file, read_contexts, write_contexts
    from metaq.remoting import split_addresses

    contexts = read_contexts()
    before = contexts.contexts.get(name)
    servers = namesrv or (before.namesrv if before else None)
    if servers is None:
        raise CommandError(f"context {name} is new and needs --namesrv", hint="write --namesrv HOST:PORT")
    split_addresses(servers)
    secret = None if secret_key_file is None else _read_secret(secret_key_file)
    context = Context(
        servers,
        cluster or (before.cluster if before else None),
        register or (before.register if before else None),
        access_key or (before.access_key if before else None),
        secret or (before.secret_key if before else None),
    )
    if (context.access_key is None) != (context.secret_key is None):
        raise CommandError("a user needs a password", hint="give --access-key and --secret-key-file")
    contexts.contexts[name] = context
    if use or contexts.current is None:
        contexts.current = name
    write_contexts(contexts)
    in_use = contexts.current == name
    text = f"{name} is {'in use' if in_use else 'stored'} ({contexts_file()})"
    print_one(output, {"name": name, "in_use": in_use, **_public(context)}, text)


@app.command()
def use(name: Name, output: Output = Format.table) -> None:
    """Choose the context that commands ask from now on."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.contexts import read_contexts, write_contexts

    contexts = read_contexts()
    _require(contexts, name)
    contexts.current = name
    write_contexts(contexts)
    context = contexts.contexts[name]
    print_one(
        output, {"name": name, "in_use": True, **_public(context)}, f"{name} ({context.namesrv}) is in use"
    )


@app.command()
def delete(name: Name, yes: Yes = False, output: Output = Format.table) -> None:
    """Forget a context."""
    from metaq.cli.printing.output import print_one
    from metaq.cli.reading.contexts import read_contexts, write_contexts

    contexts = read_contexts()
    _require(contexts, name)
    if not yes:
        confirm(f"Forget the context {name}?")
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = None
    write_contexts(contexts)
    print_one(output, {"name": name, "deleted": True}, f"{name} is forgotten")


def _require(contexts: Contexts, name: str) -> None:
    from metaq.suggestions import near_names

    if name not in contexts.contexts:
        near = near_names(name, contexts.contexts)
        hint = f"did you mean {' or '.join(near)}?" if near else "`metaq context list` lists all"
        raise CommandError(f"there is no context {name}", hint=hint)


def _public(context: Context) -> dict[str, str | None]:
    """Everything but the secret."""
    return {
        "namesrv": context.namesrv,
        "cluster": context.cluster,
        "register": context.register,
        "access_key": context.access_key,
    }


def _read_secret(file: str) -> str:
    import sys
    from pathlib import Path

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {file}: {error}") from None
    if not (secret := text.strip()):
        raise CommandError(f"{file} is empty")
    return secret
