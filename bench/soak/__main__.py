"""`python -m bench.soak`: clients and a broker at full rate; fails if memory or descriptors grow."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.soak.client import FORMS
from bench.soak.damage import TRIALS, run_beside_apache, run_damage
from bench.soak.faults import run_faults
from bench.soak.hostile import SECONDS as HOSTILE_SECONDS
from bench.soak.hostile import run_hostile
from bench.soak.run import soak
from bench.soak.watch import Bounds
from bench.workloads import say
from tests.support.maven import REPOSITORY_ROOT

_SECONDS = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    # SIGTERM ends its processes and deletes the store, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    scratch = chosen.scratch or REPOSITORY_ROOT / "build"
    scratch.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="soak-", dir=scratch))
    if chosen.faults or chosen.hostile or chosen.damage:
        try:
            if chosen.faults:
                return run_faults(home)
            if chosen.damage and chosen.apache:
                return run_beside_apache(home, chosen.trials, say)
            if chosen.damage:
                return run_damage(home, chosen.trials, chosen.seed, say)
            return run_hostile(home, chosen.seconds or HOSTILE_SECONDS, chosen.seed, say)
        finally:
            if not chosen.keep:
                shutil.rmtree(home, ignore_errors=True)
    forms = chosen.form or FORMS
    seconds = chosen.seconds or _SECONDS
    say(f"{', '.join(forms)} for {seconds:g} s at full rate")
    try:
        outcome = soak(
            home,
            seconds,
            forms=forms,
            bounds=Bounds(chosen.growth_mb * 1e6, chosen.growth_descriptors),
            leaking=chosen.leak,
            say=say,
        )
    finally:
        if not chosen.keep:
            shutil.rmtree(home, ignore_errors=True)
    print(outcome.machine_form() if chosen.output == "json" else "\n".join(outcome.lines()))
    for failure in outcome.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if outcome.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0] if __doc__ else None)
    bounds = Bounds()
    add = parser.add_argument
    add("--seconds", type=float, help="(default: 3600, with --hostile 600)")
    add("--form", action="append", choices=FORMS, help="only this one (may be given again)")
    add("--growth-mb", type=float, default=bounds.own_bytes / 1e6, help="allowed (default: 32)")
    add("--growth-descriptors", type=int, default=bounds.descriptors, help="allowed (default: 16)")
    add("--leak", action="store_true", help="let the clients leak, to see it found")
    add("--faults", action="store_true", help="instead, every fault of a broker group, with counts")
    add("--hostile", action="store_true", help="instead, all attacks together, beside a healthy client")
    add(
        "--damage",
        action="store_true",
        help="instead, damage to the files of one node of a group, with counts",
    )
    add("--apache", action="store_true", help="with --damage: 12 kinds, to our group and to Apache's")
    add("--trials", type=int, help=f"of --damage (default: {TRIALS}, with --seed 1)")
    add(
        "--seed", type=int, help="of the mutated frames (default: any), or of the first trial of --damage (0)"
    )
    add("-o", "--output", choices=["table", "json"], default="table")
    add("--scratch", type=Path, help="where store and logs go meanwhile (default: build/)")
    add("--keep", action="store_true", help="leave them there")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
