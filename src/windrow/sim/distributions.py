"""The shapes that times and sizes may have.

Promises: a shape turns standard normal numbers into numbers of its own, larger ones into larger ones. So two
draws are as alike as the normal numbers that they are made from, whatever the shape. No shape draws anything
itself.
"""

from math import erfc, sqrt
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from windrow.errors import ConfigError
from windrow.types import Meta, Value

Numbers = NDArray[np.float64]

Positive = Annotated[float, Meta(gt=0.0)]
Nonnegative = Annotated[float, Meta(ge=0.0)]
Cap = Annotated[Positive | None, Meta(description="nothing is larger; none if left out")]


class Shape(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base of all shapes; `kind` names them in a config."""


class Constant(Shape, frozen=True, tag="constant"):
    """Always the same number."""

    value: Annotated[Nonnegative, Meta(description="the number")]

    def shape(self, normal: Numbers) -> Numbers:
        """As many of it as there are normal numbers."""
        return np.full_like(normal, self.value)


class Uniform(Shape, frozen=True, tag="uniform"):
    """All numbers between two are equally likely."""

    low: Annotated[Nonnegative, Meta(description="the smallest number")]
    high: Annotated[Nonnegative, Meta(description="the largest number")]

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise ConfigError(f"high must be at least low ({self.low:g}), got {self.high:g}")

    def shape(self, normal: Numbers) -> Numbers:
        """Their ranks, stretched between the two."""
        return self.low + (self.high - self.low) * rank(normal)


class Exponential(Shape, frozen=True, tag="exponential"):
    """The time until something that is as likely at any moment."""

    mean: Annotated[Positive, Meta(description="its mean before the cap")]
    cap: Cap = None

    def shape(self, normal: Numbers) -> Numbers:
        """The time that a share of `rank` waits no longer than."""
        return capped(-self.mean * np.log(rank(-normal)), self.cap)


class Lognormal(Shape, frozen=True, tag="lognormal"):
    """The product of many small causes; has a long tail from sigma 1 on."""

    median: Annotated[Positive, Meta(description="half are smaller")]
    sigma: Annotated[Nonnegative, Meta(description="spread of the logarithm; 1 = a factor of 2.7 either way")]
    cap: Cap = None

    def shape(self, normal: Numbers) -> Numbers:
        """The median times e to the power of sigma times each."""
        return capped(self.median * np.exp(self.sigma * normal), self.cap)


class Pareto(Shape, frozen=True, tag="pareto"):
    """A heavy tail: twice as large is 2 to the power of alpha times as rare."""

    minimum: Annotated[Positive, Meta(description="the smallest number")]
    alpha: Annotated[Positive, Meta(description="how thin the tail is; at 1 or less only the cap bounds the mean")]
    cap: Cap = None

    def shape(self, normal: Numbers) -> Numbers:
        """The number that a share of `rank` does not exceed."""
        return capped(self.minimum * rank(-normal) ** (-1.0 / self.alpha), self.cap)


Distribution = Constant | Uniform | Exponential | Lognormal | Pareto

ZERO = Constant(value=0.0)
ONE = Constant(value=1.0)


def rank(normal: Numbers) -> Numbers:
    """The share of normal numbers that is smaller than each."""
    flat = [0.5 * erfc(-z / sqrt(2.0)) for z in normal.ravel().tolist()]
    return np.array(flat).reshape(normal.shape)


def capped(numbers: Numbers, cap: float | None) -> Numbers:
    """None larger than the cap."""
    return numbers if cap is None else np.minimum(numbers, cap)
