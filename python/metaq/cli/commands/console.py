"""metaq console: serves the console of any cluster, or makes links for one that runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metaq.cli.command_table import group_of_commands
from metaq.cli.invocation import Format
from metaq.cli.reading.flags import ContextName, NameServers, Output
from metaq.cli.reading.option_flags import flag

if TYPE_CHECKING:
    from metaq.config import Config
    from metaq.console.foreground import ConsoleFlags
    from metaq.console.place import Announcement

app = group_of_commands(
    "Serve the console of a cluster to browsers.",
    invoke_without_command=True,
    no_args_is_help=False,
)


def _text(name: str, help: str, metavar: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, help=help, metavar=metavar, show_default=False)
    return option


StateFolder = Annotated[
    str | None,
    _text(
        "--state",
        "Folder for sessions, links and the audit log (default ~/.local/state/metaq/console).",
        "DIR",
    ),
]


@app.callback()
def console(
    context: typer.Context,
    namesrv: NameServers = None,
    context_name: ContextName = None,
    listen: Annotated[
        str | None,
        _text("--listen", "Address of the console (default 127.0.0.1:8080, or a free port).", "HOST:PORT"),
    ] = None,
    operator_password_file: Annotated[
        str | None,
        _text("--operator-password-file", "File with the password of the user operator.", "FILE"),
    ] = None,
    viewer_password_file: Annotated[
        str | None,
        _text("--viewer-password-file", "File with the password of the user viewer.", "FILE"),
    ] = None,
    tls_cert: Annotated[
        str | None, _text("--tls-cert", "Certificate of the console, with its chain, as PEM.", "FILE")
    ] = None,
    tls_key: Annotated[str | None, _text("--tls-key", "Key of the certificate, as PEM.", "FILE")] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow other machines to connect without a password or without TLS."),
    ] = False,
    public_url: Annotated[
        str | None,
        _text(
            "--public-url",
            "Address of the console behind a proxy, such as https://tools.example.com/metaq.",
            "URL",
        ),
    ] = None,
    base_path: Annotated[
        str | None, _text("--base-path", "Path of the console behind a proxy, such as /metaq.", "PATH")
    ] = None,
    host_name: Annotated[
        list[str] | None,
        _text("--host-name", "Name under which browsers may open the console; repeatable.", "NAME"),
    ] = None,
    state: StateFolder = None,
    poll_interval: Annotated[
        str | None,
        _text("--poll-interval", "Time between two looks at the cluster (default 10 seconds).", "SECONDS"),
    ] = None,
    log_level: Annotated[str | None, flag("log_level")] = None,
) -> None:
    """Serve the console of a cluster to browsers.

    On a terminal, it prints two links: one for an operator and one for a viewer, who can change nothing. Each
    link signs in one browser, once; `metaq console link` makes more. Other machines may connect only with a
    password and TLS, or with --insecure.
    """
    if context.invoked_subcommand is not None:
        _refuse_flags(context)
        return
    from metaq.cli.reading.connection import context_in_use, credentials, name_servers
    from metaq.config import load
    from metaq.console.foreground import ConsoleFlags

    config = load({"log_level": log_level, "console_poll_interval_s": poll_interval})
    servers = name_servers(namesrv)
    chosen = context_in_use(context_name)
    flags = ConsoleFlags(
        nameservers=servers,
        credentials=credentials(servers),
        cluster_label=chosen[0] if chosen and chosen[1].namesrv == servers else None,
        listen=listen,
        operator_password_file=operator_password_file,
        viewer_password_file=viewer_password_file,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        is_insecure=insecure,
        public_url=public_url,
        base_path=base_path or "",
        host_names=tuple(host_name or ()),
        state=state,
        poll_interval_s=config["console_poll_interval_s"],
    )
    _run(flags, config)


@app.command()
def link(
    viewer: Annotated[bool, typer.Option("--viewer", help="A link that can change nothing.")] = False,
    state: StateFolder = None,
    data: Annotated[
        str | None, _text("--data", "Data folder of the `metaq serve` that has the console.", "DIR")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Print a new link for a console that runs on this machine. It works once, within an hour.

    Without --state and --data, the console of the `metaq serve` in this directory counts, then that of `metaq
    console`.
    """
    from metaq.cli.printing.output import print_one
    from metaq.console.access.roles import Role
    from metaq.console.place import new_link

    role = Role.viewer if viewer else Role.operator
    made = new_link(_folder(state, data), role)
    print_one(output, {"link": made, "role": role.value}, [made])


def _folder(state: str | None, data: str | None) -> Path:
    """Returns the state folder of the console that is meant. Raises ConfigError."""
    from metaq.config import load
    from metaq.config.derive import console_folder
    from metaq.console.place import default_folder, running_address
    from metaq.errors import ConfigError

    if state is not None and data is not None:
        raise ConfigError("--state and --data name two folders", hint="use one of them")
    if state is not None:
        return Path(state).expanduser().absolute()
    beside_broker = console_folder(load({"data": data}))
    if data is not None or running_address(beside_broker) is not None:
        return beside_broker
    return default_folder()


def _refuse_flags(context: typer.Context) -> None:
    """Raises ConfigError if a flag of the console was given to `link`, which would ignore it."""
    from metaq.errors import ConfigError

    shared = ("namesrv", "context_name")
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in shared and context.params.get(name) not in (None, [], (), False):
            raise ConfigError(
                f"{parameter.opts[0]} is a flag of `metaq console` itself, not of `metaq console link`",
                hint="write it after link if that has it, or leave it out",
            )


def _run(flags: ConsoleFlags, config: Config) -> None:
    import asyncio

    from metaq.console.foreground import serve_console
    from metaq.server_logging import LogLevels, set_up

    writes_json = set_up(LogLevels.parse(config["log_level"]), config["log_format"])
    asyncio.run(
        serve_console(flags, lambda announcement: _announce(announcement, flags, writes_json=writes_json))
    )


def _announce(announcement: Announcement, flags: ConsoleFlags, *, writes_json: bool) -> None:
    import logging

    import msgspec

    from metaq.cli.commands.serve import READY, is_terminal, sign_in_lines, where_links_are

    file = announcement.links_file
    how = where_links_are(str(file), "--state", str(file.parent))
    if writes_json:
        log = logging.getLogger("metaq.console")
        log.info("the console of %s is ready at %s", flags.nameservers, announcement.address)
        for line in how:
            log.info(line)
    else:
        lines = [
            f"The console of {flags.nameservers} is ready at {announcement.address}",
            *(sign_in_lines(announcement.links) if is_terminal(sys.stderr) else how),
            "Ctrl-C stops it.",
        ]
        print("\n".join(lines), file=sys.stderr, flush=True)
    fields = {
        "role": "console",
        "nameserver": flags.nameservers,
        "console": announcement.address,
        "console_links_file": str(file),
    }
    print(READY, msgspec.json.encode(fields).decode(), flush=True)
