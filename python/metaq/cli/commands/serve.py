"""metaq serve, nameserver and broker."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from metaq.cli.reading.option_flags import Assignments, ConfigFile, flag, switch
from metaq.errors import ConfigError

if TYPE_CHECKING:
    from metaq.config import Config
    from metaq.console.place import FirstLinks
    from metaq.serve import Ready, Role

READY = "METAQ_READY"
"""The first word of the line on standard output that programs wait for; JSON follows it."""

Host = Annotated[str | None, flag("host")]
Data = Annotated[str | None, flag("data", metavar="DIR")]
Flush = Annotated[str | None, flag("flush", metavar="sync|async")]
NamesrvPort = Annotated[int | None, flag("namesrv_port")]
BrokerPort = Annotated[int | None, flag("broker_port")]
Listen = Annotated[str | None, flag("listen", metavar="HOST:PORT")]
Namesrv = Annotated[str | None, flag("namesrv", metavar="HOST:PORT;…")]
Name = Annotated[str | None, flag("name")]
Cluster = Annotated[str | None, flag("cluster")]
Id = Annotated[int | None, flag("id")]
Register = Annotated[str | None, flag("register", metavar="etcd://HOST:PORT,…")]
MasterAddress = Annotated[str | None, flag("master", metavar="HOST:PORT")]
ApacheMaster = Annotated[str | None, flag("apache_master", metavar="HOST:PORT")]
ReplicaIds = Annotated[str | None, flag("replica_ids", metavar="ID,…")]
ReplicationListen = Annotated[str | None, flag("replication_listen", metavar="HOST:PORT")]
ClusterKey = Annotated[str | None, flag("cluster_key", metavar="FILE")]
Replicas = Annotated[str | None, flag("replicas", metavar="sync|async")]
MinInSync = Annotated[int | None, flag("min_in_sync")]
AdvertisedHost = Annotated[str | None, flag("advertised_host")]
InsecureListen = Annotated[bool | None, flag("insecure_listen")]
Console = Annotated[bool | None, switch("console")]
ConsolePort = Annotated[int | None, flag("console_port")]
LogLevel = Annotated[str | None, flag("log_level")]


def serve(
    host: Host = None,
    data: Data = None,
    namesrv_port: NamesrvPort = None,
    broker_port: BrokerPort = None,
    flush: Flush = None,
    name: Name = None,
    cluster: Cluster = None,
    advertised_host: AdvertisedHost = None,
    insecure_listen: InsecureListen = None,
    console: Console = None,
    console_port: ConsolePort = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run a name server, a broker and the console.

    Name server and broker share one process. The console has its own, and is for browsers on this machine.
    On a terminal, two links are printed that open it; `metaq console link` makes more.
    """
    flags = {
        "host": host,
        "data": data,
        "namesrv_port": namesrv_port,
        "broker_port": broker_port,
        "flush": flush,
        "name": name,
        "cluster": cluster,
        "advertised_host": advertised_host,
        "insecure_listen": insecure_listen,
        "console": console,
        "console_port": console_port,
        "log_level": log_level,
    }
    _run("serve", flags, assignments, config)


def nameserver(
    listen: Listen = None,
    insecure_listen: InsecureListen = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run a name server."""
    flags = {"listen": listen, "insecure_listen": insecure_listen, "log_level": log_level}
    _run("nameserver", flags, assignments, config)


def broker(
    context: typer.Context,
    name: Name = None,
    cluster: Cluster = None,
    id: Id = None,
    listen: Listen = None,
    namesrv: Namesrv = None,
    data: Data = None,
    flush: Flush = None,
    register: Register = None,
    master: MasterAddress = None,
    replica_ids: ReplicaIds = None,
    replication_listen: ReplicationListen = None,
    cluster_key: ClusterKey = None,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    apache_master: ApacheMaster = None,
    advertised_host: AdvertisedHost = None,
    insecure_listen: InsecureListen = None,
    log_level: LogLevel = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run a broker. Its commands, such as drain, work on brokers that run already."""
    if context.invoked_subcommand is not None:
        _refuse_flags(context)
        return
    flags = {
        "name": name,
        "cluster": cluster,
        "id": id,
        "listen": listen,
        "namesrv": namesrv,
        "data": data,
        "flush": flush,
        "register": register,
        "master": master,
        "replica_ids": replica_ids,
        "replication_listen": replication_listen,
        "cluster_key": cluster_key,
        "replicas": replicas,
        "min_in_sync": min_in_sync,
        "apache_master": apache_master,
        "advertised_host": advertised_host,
        "insecure_listen": insecure_listen,
        "log_level": log_level,
    }
    _run("broker", flags, assignments, config)


def _refuse_flags(context: typer.Context) -> None:
    """Raises ConfigError if a flag of the broker was given to one of its commands, which would ignore it."""
    command = context.invoked_subcommand
    for parameter in context.command.params:
        if context.params.get(parameter.name or "") not in (None, [], ()):
            raise ConfigError(
                f"{parameter.opts[0]} is a flag of `metaq broker` itself, not of `metaq broker {command}`",
                hint=f"write it after {command} if that has it, or leave it out",
            )


def _run(role: Role, flags: Mapping[str, object], assignments: list[str] | None, file: str | None) -> None:
    import asyncio
    import logging

    from metaq.config import load
    from metaq.config.kept import with_kept
    from metaq.server_logging import LogLevels, set_up

    config = load(flags, assignments=assignments or (), file=file)
    if role != "nameserver":
        config = with_kept(config)
    writes_json = set_up(LogLevels.parse(config["log_level"]), config["log_format"])
    for note in config.notes:
        logging.getLogger("metaq.config").warning(note)
    # The data plane is loaded only now: a wrong setting is reported without it.
    from metaq.serve import run

    asyncio.run(run(role, config, lambda ready: _announce(ready, config, writes_json=writes_json)))


def _announce(ready: Ready, config: Config, *, writes_json: bool) -> None:
    """Prints a block for people to standard error, or logs it, and prints one line for programs to standard
    output. Only people at a terminal get links that sign them in."""
    import dataclasses
    import logging

    import msgspec

    if writes_json:
        log = logging.getLogger("metaq.serve")
        log.info("; ".join(" ".join(line.split()) for line in _facts(ready, config)))
        for line in _console_lines(ready, config, on_terminal=False):
            log.info(line)
    else:
        lines = _greeting(ready, config, on_terminal=is_terminal(sys.stderr))
        print("\n".join(lines), file=sys.stderr, flush=True)
    fields = {name: value for name, value in dataclasses.asdict(ready).items() if value is not None}
    for for_people in ("silent_nameservers", "console_links"):
        fields.pop(for_people, None)
    print(READY, msgspec.json.encode(fields).decode(), flush=True)


def _facts(ready: Ready, config: Config) -> list[str]:
    """Returns what runs now, and where."""
    from metaq import __version__

    lines = [f"MetaQ {__version__} is ready"]
    if ready.nameserver:
        lines.append(f"  name server  {ready.nameserver}")
    if ready.broker:
        old = f" (clients up to 4.4: {ready.broker_old})" if ready.broker_old else ""
        lines.append(f"  broker       {ready.broker}{old}")
        lines.append(f"  store        {ready.data}, flush {config['flush']}")
    if ready.metrics:
        lines.append(f"  metrics      http://{ready.metrics}/metrics")
    if ready.console:
        lines.append(f"  console      {ready.console}")
    if ready.replication:
        lines.append(f"  replication  {ready.replication}, node {config['id']} of group {config['name']}")
    if ready.broker and ready.apache_master:
        lines.append(
            f"  copies       {ready.apache_master}, an Apache master, and serves no clients until you run"
        )
        lines.append(f"               metaq broker take-over {ready.broker}")
    return lines


def _greeting(ready: Ready, config: Config, *, on_terminal: bool) -> list[str]:
    has_clients = ready.broker and not ready.apache_master
    steps = _first_steps(ready, config) if has_clients else []
    console = _console_lines(ready, config, on_terminal=on_terminal)
    return [*_facts(ready, config), *console, *steps, "Ctrl-C stops it."]


def _console_lines(ready: Ready, config: Config, *, on_terminal: bool) -> list[str]:
    """Returns how to sign in to the console; nothing if there is none."""
    if ready.console_links is None or ready.console_links_file is None:
        return []
    from metaq.config.derive import console_folder

    if on_terminal:
        return sign_in_lines(ready.console_links)
    return where_links_are(ready.console_links_file, "--data", str(console_folder(config).parent))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people at a terminal see what this stream gets. None is a stream that was closed."""
    return stream is not None and stream.isatty()


def sign_in_lines(links: FirstLinks) -> list[str]:
    """Returns both links, and says for whom each is. They are for a terminal, and never for a log."""
    return [
        "Open the console with a click. Each link works once; `metaq console link` makes more:",
        f"  for you, who may change things:    {links.operator}",
        f"  for a viewer, who can only look:   {links.viewer}",
    ]


def where_links_are(file: str, flag: str, folder: str) -> list[str]:
    """Returns how to get a link, for a log that others may read."""
    command = shlex.join(("metaq", "console", "link", flag, folder))
    return [f"To open the console, run `{command}`, which prints a link; programs find links in {file}"]


def _first_steps(ready: Ready, config: Config) -> list[str]:
    """Returns commands that work with the broker now, or says why none does."""
    own = (ready.nameserver,) if ready.nameserver else ()
    nameservers = list(dict.fromkeys((*own, *config["namesrv"])))
    silent = ready.silent_nameservers or ()
    reached = [address for address in nameservers if address not in silent]
    lines = []
    if not nameservers:
        return ["  No name server is set, so no client can find this broker; set one with --namesrv"]
    if silent:
        servers, answer = ("server", "does not answer") if len(silent) == 1 else ("servers", "do not answer")
        lines.append(
            f"  Name {servers} {', '.join(silent)} {answer}; the broker tries again until it is registered"
        )
    if not reached:
        return [*lines, "  Until then no client can find this broker"]
    asked = ready.nameserver if ready.nameserver in reached else ";".join(reached)
    where = "" if asked == "127.0.0.1:9876" else f" --namesrv '{asked}'"
    command = sys.argv[0] if sys.argv[0].endswith("/metaq") else "metaq"
    return [
        *lines,
        "Try it from another terminal:",
        f"  {command} send Hello 'first message'{where}",
        f"  {command} tail Hello --from earliest{where}",
    ]
