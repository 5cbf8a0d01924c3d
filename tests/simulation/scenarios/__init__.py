"""The scenarios of the design, by their numbers, and random ones.

Every scenario begins with a whole group under load. When it returns, everything heals, and all promises are
checked.
"""

from __future__ import annotations

from tests.simulation.scenarios import (
    crashes,
    damaged_logs,
    disk_faults,
    fixed_roles,
    old_registers,
    partitions,
    random_faults,
    register_faults,
    switches,
    upgrades,
)
from tests.simulation.scenarios.catalogue import SCENARIOS, Scenario, run_scenario

ROOMS = (
    crashes,
    damaged_logs,
    disk_faults,
    fixed_roles,
    old_registers,
    partitions,
    random_faults,
    register_faults,
    switches,
    upgrades,
)

__all__ = ["ROOMS", "SCENARIOS", "Scenario", "run_scenario"]
