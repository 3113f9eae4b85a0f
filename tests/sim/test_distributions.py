"""The shapes that times and sizes may have."""

from math import exp

import numpy as np
import pytest

from windrow.errors import ConfigError
from windrow.sim.distributions import Constant, Distribution, Exponential, Lognormal, Pareto, Uniform

NORMAL = np.random.default_rng(0).standard_normal(200_000)


@pytest.mark.parametrize(
    ("shape", "mean"),
    [
        (Constant(value=3.0), 3.0),
        (Uniform(low=2.0, high=6.0), 4.0),
        (Exponential(mean=5.0), 5.0),
        (Exponential(mean=5.0, cap=5.0), 5.0 * (1.0 - exp(-1.0))),
        (Lognormal(median=10.0, sigma=0.9), 10.0 * exp(0.9**2 / 2)),
        (Pareto(minimum=2.0, alpha=3.0), 3.0),
    ],
)
def test_a_sample_has_the_mean_of_theory(shape: Distribution, mean: float):
    assert shape.shape(NORMAL).mean() == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(
    "shape", [Uniform(low=0, high=9), Exponential(mean=2), Lognormal(median=1, sigma=2), Pareto(minimum=1, alpha=1)]
)
def test_larger_normal_numbers_give_larger_ones(shape: Distribution):
    assert np.all(np.diff(shape.shape(np.linspace(-4.0, 4.0, 100))) > 0)


def test_nothing_is_larger_than_the_cap():
    assert Pareto(minimum=1.0, alpha=0.5, cap=40.0).shape(NORMAL).max() == 40.0


def test_a_uniform_shape_refuses_a_high_below_its_low():
    with pytest.raises(ConfigError, match=r"^high must be at least low"):
        Uniform(low=2.0, high=1.0)
