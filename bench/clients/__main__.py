"""`python -m bench.clients TASK`: one client process, which does its task and prints the result."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys

from bench.clients.task import Task


def main() -> int:
    task = Task.read(sys.argv[1])
    # A process loads only one client library.
    module, _, function = task.program.partition(".")
    outcome = getattr(importlib.import_module(f"bench.clients.{module}"), function)(task)
    if inspect.iscoroutine(outcome):
        outcome = asyncio.run(outcome)
    print(outcome.written(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
