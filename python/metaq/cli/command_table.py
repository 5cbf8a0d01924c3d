"""All commands, and the class that loads each one when it is used.

To import every command would take longer than most of them run, so the table has the help that `metaq --help`
shows, and a test compares it with the commands.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from metaq.cli.invocation import begin, current, read_format
from metaq.cli.suggestions import near_commands

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Entry:
    """A module of `metaq.cli.commands`, and the Typer app or function in it that is the command."""

    module: str
    help: str
    name_in_module: str = "app"


SECTIONS: dict[str, dict[str, Entry]] = {
    "Run servers": {
        "serve": Entry("serve", "Run a name server, a broker and the console.", "serve"),
        "nameserver": Entry("serve", "Run a name server.", "nameserver"),
        "broker": Entry("broker", "Run a broker, or work on one that runs: drain, take-over."),
        "console": Entry("console", "Serve the console of a cluster to browsers."),
        "dev": Entry("dev", "Run a whole cluster on this machine."),
    },
    "Send and read messages": {
        "send": Entry("send", "Send messages and print where they were stored.", "send"),
        "tail": Entry("tail", "Print the messages of a topic without consuming them.", "tail"),
        "consume": Entry("consume", "Consume messages as a member of a group and print them.", "consume"),
        "message": Entry("message", "Find stored messages, show them and send them again."),
        "dlq": Entry("dlq", "List the messages that a group has given up, and send them to it again."),
        "delayed": Entry("delayed", "Count and list the messages that wait for their time, and recall them."),
        "transaction": Entry(
            "transaction", "List the transactions that are open, and commit or roll them back by hand."
        ),
    },
    "Topics and groups": {
        "topic": Entry("topic", "Create, list, show, update, limit, retain, purge and delete topics."),
        "group": Entry(
            "group", "List, show, create, update, reset, clone, limit and delete consumer groups."
        ),
    },
    "Operate a cluster": {
        "cluster": Entry("cluster", "Show the state of a cluster, and choose masters."),
        "doctor": Entry("doctor", "Find what is wrong, and the commands that mend it.", "doctor"),
        "config": Entry("config", "Show the configuration, or hand a store back to RocketMQ."),
        "top": Entry(
            "top", "Watch brokers, the busiest topics and the groups that are furthest behind.", "top"
        ),
        "bench": Entry("bench", "Measure how fast a cluster stores and delivers messages."),
    },
    "This command line": {
        "context": Entry("context", "Name clusters, and choose the one that commands ask."),
        "completion": Entry("completion", "Print a script for the completion of a shell.", "completion"),
    },
    "Data": {
        "pipeline": Entry("pipeline", "List and run data pipelines, and show those that run."),
        "spark": Entry("spark", "Prepare Spark clusters for pipelines and queries."),
        "filter": Entry("filter", "List the functions that consumers can filter messages with."),
        "parked": Entry(
            "parked", "List the messages that consumers on this machine have parked, and replay them."
        ),
    },
}


def entries() -> Iterator[tuple[str, Entry]]:
    for section in SECTIONS.values():
        yield from section.items()


class CommandGroup(TyperGroup):
    """A group of commands. It takes the flags of `invocation.py` before the command, and knows other tools'
    words for ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _take_flags(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            path = ctx.command_path
            near = near_commands(name, self.list_commands(ctx))
            hint = f"did you mean {' or '.join(f'`{path} {command}`' for command in near)}?" if near else ""
            ctx.fail(f"{path} has no command {name!r}; {hint or f'`{path} --help` lists them'}")
        return super().resolve_command(ctx, args)


class RootCommands(CommandGroup):
    """The commands of the table, each loaded when it is used."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        begin()
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, _ in entries()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = dict(entries()).get(cmd_name)
        return None if known is None else load_command(cmd_name, known)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from typer._click.core import Command
        from typer._click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return list(Command.shell_complete(self, ctx, incomplete))
        return [
            CompletionItem(name, help=entry.help) for name, entry in entries() if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in section.items()])


def load_command(name: str, entry: Entry) -> Any:
    """Imports a command and returns it as Typer's object."""
    found = getattr(importlib.import_module(f"metaq.cli.commands.{entry.module}"), entry.name_in_module)
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, context_settings={"help_option_names": ["-h", "--help"]})(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command


def group_of_commands(help: str, **options: Any) -> typer.Typer:
    """Returns an empty group; its commands are added with `@app.command()`."""
    options.setdefault("no_args_is_help", True)
    app = typer.Typer(
        help=help,
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
    if "callback" not in options and not options.get("invoke_without_command"):
        # A group with one command would otherwise become that command.
        app.callback()(_nothing)
    return app


def _nothing() -> None:
    pass


def _take_flags(ctx: Any, args: list[str]) -> list[str]:
    """Takes --namesrv, --context and -o that stand before the command."""
    rest = list(args)
    while rest:
        flag, equals, value = rest[0].partition("=")
        if flag not in ("--namesrv", "--context", "-o", "--output") or _has_flag(ctx, flag):
            break
        if not equals:
            if len(rest) < 2:
                ctx.fail(f"Option {flag!r} requires an argument.")
            value = rest.pop(1)
        rest.pop(0)
        if flag == "--namesrv":
            current().namesrv = value
        elif flag == "--context":
            current().context = value
        else:
            try:
                current().output = read_format(value)
            except ValueError:
                ctx.fail(f"{value!r} is not one of table, json, csv")
    return rest


def _has_flag(ctx: Any, flag: str) -> bool:
    """Whether the group itself has a flag of that name, as `metaq broker` has."""
    return any(flag in parameter.opts for parameter in ctx.command.params)
