"""The accuracy that is expected of new images, and its interval."""

import math
from statistics import NormalDist

import pytest
from scipy.optimize import brentq

from kalmanclip.errors import ConfigError
from kalmanclip.prediction import ExpectedAccuracy


@pytest.mark.parametrize(("right", "images"), [(87, 100), (1, 9), (5, 10), (400, 592)])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_ends_are_where_a_normal_test_begins_to_refuse(right, images, level):
    z = NormalDist().inv_cdf(0.5 + level / 2)

    def refused_by(p):
        return (right / images - p) ** 2 - z**2 * p * (1 - p) / images

    expected = ExpectedAccuracy(right, images)
    ends = [brentq(refused_by, a, b, xtol=1e-13) for a, b in ((0, right / images), (right / images, 1))]
    assert expected.interval(level) == pytest.approx(ends, abs=1e-9)
    assert expected.accuracy == right / images


@pytest.mark.parametrize(("right", "images"), [(0, 3), (3, 3), (40, 40), (0, 1)])
def test_it_stays_among_the_shares_and_says_something_at_their_ends(right, images):
    low, high = ExpectedAccuracy(right, images).interval()
    assert 0 <= low < high <= 1
    assert (low if right else high) not in (0, 1)
    assert math.isclose(low if not right else high, right / images, abs_tol=1e-12)


@pytest.mark.parametrize("level", [0, 1, math.nan])
def test_a_level_that_is_none_is_refused(level):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ExpectedAccuracy(1, 2).interval(level)
