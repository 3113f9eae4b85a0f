"""The shop's world: goods made from a seed, and a search over them.

Promises: the same world has the same goods in any process; the same query finds the same goods in the same order: by
how many of its words stand in their title, then by number. The world is made once per process and never changes.

The search knows titles and departments alone. Whatever else a thing is, one has to look at it to find out.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from random import Random

from windrow.envs.shop.words import BRANDS, DEPARTMENTS, Department
from windrow.types import Value

FOUND_AT_MOST = 50
"""Nobody reads on after so many results."""
ATTRIBUTES = (3, 5)
VALUES = (2, 4)
"""How many values of an option are on offer."""


class Product(Value, frozen=True, kw_only=True, gc=True):
    """One thing to buy."""

    number: str
    brand: str
    department: str
    kind: str
    attributes: tuple[str, ...]
    """The first two stand in the title; for the others one has to look."""
    options: dict[str, tuple[str, ...]]
    cents: int

    @property
    def title(self) -> str:
        return f"{self.brand} {self.attributes[0]} {self.kind}, {self.attributes[1]}"

    @property
    def price(self) -> str:
        return f"${self.cents / 100:.2f}"


class Catalogue:
    """All goods of one world."""

    def __init__(self, products: tuple[Product, ...]) -> None:
        self.products = products
        self._having: dict[str, list[int]] = {}  # word to all and only goods that have it
        for place, product in enumerate(products):
            for word in dict.fromkeys(words_of(f"{product.title} {product.department}")):
                self._having.setdefault(word, []).append(place)

    def search(self, query: str) -> tuple[Product, ...]:
        """What has at least one word of the query, best first."""
        words = dict.fromkeys(words_of(query))
        hits = Counter(place for word in words for place in self._having.get(word, ()))
        ranked = sorted(hits, key=lambda place: (-hits[place], place))
        return tuple(self.products[place] for place in ranked[:FOUND_AT_MOST])


@lru_cache(maxsize=4)
def catalogue(world: int, products: int) -> Catalogue:
    """The goods of a world."""
    return Catalogue(tuple(_products(world, products)))


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _products(world: int, count: int) -> Iterator[Product]:
    rng = Random(f"shop world {world}")
    kinds = [(department, kind) for department in DEPARTMENTS for kind in department.kinds]
    for place in range(count):
        department, kind = kinds[place % len(kinds)]
        yield _product(f"B{place + 1000}", department, kind, rng)


def _product(number: str, department: Department, kind: str, rng: Random) -> Product:
    least, most = department.dollars
    return Product(
        number=number,
        brand=rng.choice(BRANDS),
        department=department.name,
        kind=kind,
        attributes=tuple(rng.sample(department.attributes, rng.randint(*ATTRIBUTES))),
        options={name: _offered(values, rng) for name, values in department.options},
        cents=rng.randint(least, most) * 100 - rng.choice((1, 5, 50)),
    )


def _offered(values: tuple[str, ...], rng: Random) -> tuple[str, ...]:
    """Some of the values, in their order."""
    some = set(rng.sample(values, min(len(values), rng.randint(*VALUES))))
    return tuple(value for value in values if value in some)
