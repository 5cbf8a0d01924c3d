"""Writes docs/configuration.md from the table of options, or with --check only compares: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from metaq.config.kinds import Bytes
from metaq.config.option import SECTIONS, Option, shown
from metaq.config.options import OPTIONS
from metaq.config.upstream import SAME

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from python/metaq/config/options.py; a test compares the two. -->

Every option can be given in six places. The nearest to the command wins:

1. its flag, where the command has one (`--broker-port 0`),
2. `--set name=value`, which reaches every option (`--set commit_log_file_bytes=1MiB`),
3. an environment variable (`METAQ_BROKER_PORT=0`),
4. a value that `metaq config set --persist` has kept in the folder of the store (`options.json`),
5. a file named by `--config` or `METAQ_CONFIG`,
6. the default.

`metaq config show` prints each value and where it came from; `-o json` gives the same to programs.
`metaq config get BROKER` asks a running broker. Sizes
take the suffixes `k`, `M`, `G` (also `KiB`, `MB`, …), always in steps of 1024. A misspelt option stops the
start and names the nearest one there is.

A file that ends in `.toml` holds options under their names, flat or in tables named after the sections below:

```toml
name = "broker-b"

[store]
flush = "async"
commit_log_file_bytes = "256MiB"
```

A file that ends in `.conf` or `.properties` is read as a `broker.conf` of Apache RocketMQ; the last table
lists the keys that are understood. Other keys are reported and have no effect. With
`brokerRole=SLAVE` the file must have `haMasterAddress`; with `SYNC_MASTER`, name the replicas with
`--replica-ids`.

## Change options of a running broker

A running broker can change the options that have a ⟳ below:

```
metaq config get broker-a disk_refuse_percent
metaq config set broker-a disk_refuse_percent=95
metaq config set broker-a file_reserved_hours=24 --persist
metaq config unset broker-a file_reserved_hours
```

- `set` checks a value as a start does. All values of one command change, or none.
- Without `--persist`, the value counts until the broker stops.
- With `--persist`, later starts use it, too. It wins over the configuration file, but not over the
  environment, `--set` and flags: if one of these sets the option, `--persist` is refused.
- `unset` forgets the value: the option goes back to what the start would set without it.
- Each node of a group has values of its own. Name replicas by their address.

The broker logs each change with the address of who asked for it. RocketMQ's names, such as
`fileReservedTime`, work as well.

No role listens beyond this machine unless `insecure_listen` says so, since there is no access control yet.
"""


def render() -> str:
    parts = [INTRODUCTION]
    for section, title in SECTIONS.items():
        parts.append(f"\n## `{section}`: {title.lower()}\n")
        parts.append("| option | default | may be | what it does |\n|---|---|---|---|")
        parts += [_row(option) for option in OPTIONS.values() if option.section == section]
    parts.append("\n## Keys of `broker.conf`\n")
    parts.append("| RocketMQ | MetaQ |\n|---|---|")
    parts += [
        f"| `{key}` | `{name}` |" for key, (name, _) in sorted(SAME.items(), key=lambda pair: pair[0].lower())
    ]
    return "\n".join(parts) + "\n"


def _row(option: Option) -> str:
    default = shown(option, option.default)
    if default != "–" and not isinstance(option.kind, Bytes):
        default = f"`{default}`"
    may_be = option.kind.describe().replace("|", "\\|")
    at_run_time = " ⟳" if option.at_run_time else ""
    return f"| `{option.name}`{at_run_time} | {default} | {may_be} | {option.help} |"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0 if TARGET.read_text(encoding="utf-8") == render() else f"{TARGET.name} is stale: make docs"
        )
    TARGET.write_text(render(), encoding="utf-8")
