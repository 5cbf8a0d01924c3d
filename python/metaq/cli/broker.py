"""metaq broker: runs a broker, or works on one that runs."""

from __future__ import annotations

import typer

from metaq.cli import cluster, serve, take_over

app = typer.Typer(invoke_without_command=True)
app.callback()(serve.broker)
app.command("drain")(cluster.drain)
app.command("take-over")(take_over.take_over)
