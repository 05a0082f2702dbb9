"""Hypothesis profiles: `ci` (the default) gives the same examples at each run, `search` looks for new ones.

HYPOTHESIS_PROFILE=search python -m pytest tests/unit/test_against_reference.py --timeout 0
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("ci", derandomize=True, database=None, deadline=None, suppress_health_check=SLOW)
settings.register_profile("search", deadline=None, database=None, suppress_health_check=SLOW)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")


def examples(count: int) -> settings:
    """The profile's settings for a test that takes `count` examples; a search takes many more."""
    return settings(settings.get_profile(PROFILE), max_examples=count if PROFILE == "ci" else 50 * count)
