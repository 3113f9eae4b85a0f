"""What is wanted, and how much of it a purchase gives.

Promises: the score is that of WebShop, r = type x (attributes + options + price) / (wanted attributes + wanted options
+ 1), where each of the three counts what was met. `type` is 1 for the wanted kind, 0.5 for another kind of the same
department and 0 otherwise. The score is 1 only if everything is met.
"""

from collections.abc import Mapping
from random import Random

from windrow.envs.shop.catalogue import Catalogue, Product
from windrow.types import Value

DOLLARS_STEP = 10
WANTED = (1, 3)
"""How many attributes are asked for."""


class Goal(Value, frozen=True, kw_only=True):
    """What the customer wants."""

    kind: str
    department: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    dollars: int
    """It may cost so much."""

    @property
    def key(self) -> str:
        """What makes two goals the same."""
        options = ",".join(f"{name}={value}" for name, value in self.options)
        return f"{self.kind}|{','.join(self.attributes)}|{options}|{self.dollars}"

    @property
    def words(self) -> str:
        """The instruction."""
        options = " and ".join(f"{name} {value}" for name, value in self.options)
        chosen = f", with {options}" if options else ""
        return f"i need {self.kind} that is {' and '.join(self.attributes)}{chosen}, for {self.dollars} dollars or less"

    @property
    def query(self) -> str:
        """What to type into the search."""
        return " ".join((*self.attributes, self.kind))

    def is_met_by(self, product: Product) -> bool:
        """Whether the product, with the right options, is all that is wanted."""
        return scored(self, product, dict(self.options)).total == 1.0


class Purchase(Value, frozen=True, kw_only=True):
    """What became of a goal."""

    type_match: float
    attributes: int
    """Wanted attributes that it has."""
    options: int
    """Wanted options that were chosen, and are on offer."""
    price: int
    """1 if it costs no more than it may."""
    total: float


def scored(goal: Goal, product: Product, chosen: Mapping[str, str]) -> Purchase:
    """How well a purchase meets a goal."""
    type_match = 1.0 if product.kind == goal.kind else 0.5 if product.department == goal.department else 0.0
    attributes = len(set(goal.attributes) & set(product.attributes))
    options = sum(chosen.get(name) == value in product.options.get(name, ()) for name, value in goal.options)
    price = int(product.cents <= goal.dollars * 100)
    wanted = len(goal.attributes) + len(goal.options) + 1
    return Purchase(
        type_match=type_match,
        attributes=attributes,
        options=options,
        price=price,
        total=type_match * (attributes + options + price) / wanted,
    )


def any_goal(catalogue: Catalogue, rng: Random) -> Goal:
    """A goal that some product meets."""
    product = rng.choice(catalogue.products)
    attributes = rng.sample(product.attributes, min(len(product.attributes), rng.randint(*WANTED)))
    wanted = rng.sample(sorted(product.options), rng.randint(0, len(product.options)))
    return Goal(
        kind=product.kind,
        department=product.department,
        attributes=tuple(sorted(attributes)),
        options=tuple((name, rng.choice(product.options[name])) for name in sorted(wanted)),
        dollars=-(-product.cents // (100 * DOLLARS_STEP)) * DOLLARS_STEP,
    )
