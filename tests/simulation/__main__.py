"""Runs scenarios with many seeds; prints the seed of a failure, and replays it.

python -m tests.simulation [--scenario NAME] [--seed N] [--runs N] [--seconds S] [--mutant NAME]
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time

from tests.simulation.checks import Violation
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.scenarios import SCENARIOS, run_scenario


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="default: all, in turn")
    parser.add_argument("--seed", type=int, help="replay one seed and print its trace")
    parser.add_argument("--runs", type=int, default=1000, help="number of runs (default 1000)")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="a mistake that must be caught")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = [options.scenario] if options.scenario else list(SCENARIOS)
    with mutated(options.mutant) as switches:
        if options.seed is not None:
            return max(replay(name, options.seed, switches) for name in names)
        return run_many(names, options, switches)


def replay(name: str, seed: int, mutants: tuple[str, ...]) -> int:
    """Plays one run and prints what happened."""
    try:
        world = run_scenario(name, seed, mutants)
    except Violation as violation:
        print("\n".join(violation.world.trace))  # type: ignore[attr-defined]
        print(f"{name}, seed {seed}: {violation}")
        return 1
    print("\n".join(world.trace))
    print(f"{name}, seed {seed}: {len(world.oracle.acks)} acknowledged, all promises kept")
    return 0


def run_many(names: list[str], options: argparse.Namespace, mutants: tuple[str, ...]) -> int:
    """Plays many runs and prints a summary."""
    started = time.monotonic()
    runs = acknowledged = elections = failed = 0
    virtual_s = 0.0
    for number in itertools.count():
        seed, name = options.first_seed + number // len(names), names[number % len(names)]
        if number == options.runs or (options.seconds and time.monotonic() - started > options.seconds):
            break
        try:
            world = run_scenario(name, seed, mutants)
        except Violation as violation:
            failed += 1
            print(f"{violation}\n    python -m tests.simulation --scenario {name} --seed {seed}", flush=True)
            continue
        runs += 1
        acknowledged += len(world.oracle.acks)
        elections += world.oracle.elections
        virtual_s += world.loop.time() - 1000
    print(
        f"{runs + failed} runs, {failed} failed, {virtual_s / 3600:.1f} simulated hours, {acknowledged} "
        f"acknowledged, {elections} masters, in {time.monotonic() - started:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
