"""Every scenario keeps every promise, with a few seeds each.

`python -m tests.simulation` runs as many as you like.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.checks import Violation
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.scenarios import SCENARIOS, run_scenario

SEEDS = 6
RANDOM_SEEDS = 30
MUTANT_SEEDS = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Simulated nodes log thousands of lines about simulated faults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(name: str, seed: int, mutants: tuple[str, ...] = ()) -> None:
    try:
        run_scenario(name, seed, mutants)
    except Violation as violation:
        pytest.fail(
            f"{violation}\n    python -m tests.simulation --scenario {name} --seed {seed}", pytrace=False
        )


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_is_kept(name: str) -> None:
    for seed in range(RANDOM_SEEDS if name.startswith("random") else SEEDS):
        play(name, seed)


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_scenario("random_faults", 4).trace == run_scenario("random_faults", 4).trace


def test_the_scenarios_cover_the_decisions_of_the_design() -> None:
    # The others are about state, transactions, delays, locks, offsets and routes: no decision touches them.
    elsewhere = {21, 22, 23, 24, 25, 27}
    assert {scenario.number for scenario in SCENARIOS.values()} - {0} == set(range(1, 30)) - elsewhere


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(name: str) -> None:
    with mutated(name) as switches:
        for seed in range(MUTANT_SEEDS):
            for scenario in MUTANTS[name].scenarios:
                try:
                    run_scenario(scenario, seed, switches)
                except Violation:
                    return
    pytest.fail(f"{name}: no seed of {', '.join(MUTANTS[name].scenarios)} notices it")
