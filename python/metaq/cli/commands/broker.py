"""metaq broker: runs a broker, or works on one that runs."""

from __future__ import annotations

from metaq.cli.command_table import group_of_commands
from metaq.cli.commands import cluster, serve, take_over

app = group_of_commands(
    "Run a broker, or work on one that runs: drain, take-over.",
    invoke_without_command=True,
    no_args_is_help=False,
)
app.callback()(serve.broker)
app.command("drain")(cluster.drain)
app.command("take-over")(take_over.take_over)
