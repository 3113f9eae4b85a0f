"""The shop's pages: what they show, what can be clicked on them, and where a click leads.

Pages never change; a click gives another one. Buying is no page: it ends the visit.
"""

import re
from typing import Literal, assert_never

from windrow.envs.shop.catalogue import Product
from windrow.types import Value, but

Tab = Literal["", "features", "description"]

BUY = "buy now"
BACK = "back to search"
NEXT, PREVIOUS = "next", "previous"

SAME: dict[str, str] = {
    "buy": BUY,
    "back": PREVIOUS,
    "prev": PREVIOUS,
    "previous page": PREVIOUS,
    "next page": NEXT,
    "search": BACK,
    "feature": "features",
}
"""What people also call a link."""


class SearchPage(Value, frozen=True):
    """Nothing but a line to type into."""


class ResultsPage(Value, frozen=True, kw_only=True):
    """Some of what was found."""

    found: tuple[Product, ...]
    per_page: int
    number: int = 0

    @property
    def shown(self) -> tuple[Product, ...]:
        return self.found[self.number * self.per_page : (self.number + 1) * self.per_page]

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.found) // self.per_page))


class ItemPage(Value, frozen=True, kw_only=True, gc=True):
    """One product, and what was chosen of its options."""

    product: Product
    results: ResultsPage
    """Where it was clicked."""
    chosen: dict[str, str] = {}
    tab: Tab = ""


Page = SearchPage | ResultsPage | ItemPage


def links(page: Page) -> list[str]:
    """All and only what can be clicked."""
    match page:
        case SearchPage():
            return []
        case ResultsPage():
            turns = [NEXT] * (page.number + 1 < page.pages) + [PREVIOUS] * (page.number > 0)
            return [*(product.number for product in page.shown), *turns, BACK]
        case ItemPage(tab=""):
            options = [f"{name}: {value}" for name, values in page.product.options.items() for value in values]
            return [*options, "features", "description", PREVIOUS, BACK, BUY]
        case ItemPage():
            return [PREVIOUS, BACK]
        case _:
            assert_never(page)


def follow(page: ResultsPage | ItemPage, link: str) -> Page:
    """The page behind a link that is not `buy now`."""
    if link == BACK:
        return SearchPage()
    return _from_results(page, link) if isinstance(page, ResultsPage) else _from_item(page, link)


def _from_results(page: ResultsPage, link: str) -> Page:
    if link in (NEXT, PREVIOUS):
        return but(page, number=page.number + (1 if link == NEXT else -1))
    (product,) = (each for each in page.shown if each.number == link)
    return ItemPage(product=product, results=page)


def _from_item(page: ItemPage, link: str) -> Page:
    match link:
        case "previous":
            return but(page, tab="") if page.tab else page.results
        case "features" | "description":
            return but(page, tab=link)
        case _:
            name, _, value = link.partition(": ")
            return but(page, chosen=page.chosen | {name: value})


def meant(page: Page, said: str) -> str | None:
    """The link that somebody means; None if it could be none or several."""
    known = {_plain(link): link for link in links(page)}
    plain = _plain(said)
    plain = plain if plain in known else SAME.get(plain, plain)
    if plain in known:
        return known[plain]
    values = [link for link in known.values() if ": " in link and _plain(link.partition(": ")[2]) == plain]
    return values[0] if len(values) == 1 else None


def mentioned(page: Page, said: str) -> str | None:
    """The link that a sentence mentions last, and of those that end there the longest; None if there is none."""
    plain = f" {_plain(said)} "
    places = {link: plain.rfind(f" {_plain(link)} ") for link in links(page)}
    ends = {link: (at + len(_plain(link)), len(link)) for link, at in places.items() if at >= 0}
    return max(ends, key=lambda link: ends[link]) if ends else None


def _plain(text: str) -> str:
    """Words alone: case, signs and blanks say nothing."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def shown(page: Page) -> str:
    """What a page shows."""
    match page:
        case SearchPage():
            return "search page: search[words]"
        case ResultsPage():
            return _shown_results(page)
        case ItemPage(tab=""):
            return _shown_item(page)
        case ItemPage():
            return f"{_told(page)}\nclick: {', '.join(links(page))}"
        case _:
            assert_never(page)


def _shown_results(page: ResultsPage) -> str:
    head = f"page {page.number + 1} of {page.pages}, {len(page.found)} found"
    lines = [f"{product.number} {product.title} {product.price}" for product in page.shown]
    turns = links(page)[len(page.shown) :]
    return "\n".join((head, *lines, f"click: number, {', '.join(turns)}"))


def _shown_item(page: ItemPage) -> str:
    product = page.product
    options = [
        f"{name}{f' ({page.chosen[name]})' if name in page.chosen else ''}: {', '.join(values)}"
        for name, values in product.options.items()
    ]
    rest = links(page)[sum(map(len, product.options.values())) :]
    return "\n".join(
        (f"{product.number} {product.title} {product.price}", *options, f"click: option: value, {', '.join(rest)}")
    )


def _told(page: ItemPage) -> str:
    product = page.product
    if page.tab == "features":
        return "\n".join((f"features of {product.number}", *(f"- {each}" for each in product.attributes)))
    return f"{product.number}, {product.department}: this {product.kind} by {product.brand} is {product.attributes[-1]}"
