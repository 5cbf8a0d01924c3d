"""Property tests here say nothing about how fast the machine is."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")
