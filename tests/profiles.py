"""How many examples Hypothesis draws: few while people wait, many where CI tries everything.

`pytest --hypothesis-profile=thorough` draws many.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, settings

THOROUGH = "thorough"

# Speed is measured in benchmarks, never by a test: machines are noisy.
settings.register_profile("few", deadline=None, max_examples=15)
settings.register_profile(THOROUGH, deadline=None, max_examples=100)


def examples(few: int, many: int, *, ignoring: Iterable[HealthCheck] = ()) -> settings:
    """The settings of a property test that needs other numbers of examples than the profiles have.

        @given(st.integers())
        @examples(5, 300)
        def test_…

    Args:
        few: examples by default.
        many: examples in the thorough profile.
        ignoring: health checks that do not hold for the test.
    """
    thorough = settings.get_current_profile_name() == THOROUGH
    return settings(max_examples=many if thorough else few, suppress_health_check=list(ignoring))
