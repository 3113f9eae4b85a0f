"""A shop in words, after WebShop: search, turn pages, look at things, choose options, buy.

Promises: every goal can be met in full through ordinary pages within the step limit; the same task is the same episode
for the same actions; the score is that of `goals`, given when something is bought. Leaving without buying scores 0.
"""

import re
from random import Random
from typing import Annotated, Any, assert_never

import msgspec

from windrow.envs.drawing import draw
from windrow.envs.games import Course, settled, settled_for_task, spoken
from windrow.envs.protocol import Step
from windrow.envs.shop.catalogue import Catalogue, catalogue, words_of
from windrow.envs.shop.goals import Goal, any_goal, scored
from windrow.envs.shop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    ItemPage,
    Page,
    ResultsPage,
    SearchPage,
    follow,
    links,
    meant,
    mentioned,
    shown,
)
from windrow.errors import EnvError
from windrow.trajectory import Task
from windrow.types import Meta, Value

NAME = "shop"
RULES = "answer search[words] on the search page, click[link] on any other; click[buy now] ends the visit"
TRIES = 1_000

_SEARCH = re.compile(r"search(?:\s+for)?\s*[\[(:]\s*([^\])\n]*)", re.IGNORECASE)
_SEARCH_BARE = re.compile(r"\bsearch(?:\s+for)?\s+(\S[^\n]*)", re.IGNORECASE)
_CLICK = re.compile(r"click\s*[\[(:]\s*([^\])\n]*)", re.IGNORECASE)


class World(Value, frozen=True, kw_only=True):
    """What can be chosen."""

    world: int = 0
    """The seed of the catalogue, the same for all tasks of a run."""
    products: Annotated[int, Meta(ge=40, le=2000)] = 400
    per_page: Annotated[int, Meta(ge=2, le=20)] = 5
    """Results on one page."""
    max_steps: Annotated[int, Meta(ge=8)] = 15
    rules: bool = True
    """Begin with how to answer."""


class ShopEnv:
    """Buy what is wanted; keywords are the fields of `World`, and so is a task's payload."""

    def __init__(self, **settings: object) -> None:
        self._world = settled(World, NAME, settings)
        self._course = Course(NAME)
        self._goods = Catalogue(())
        self._goal = Goal(kind="", department="", attributes=(), options=(), dollars=0)
        self._page: Page = SearchPage()

    async def start(self, task: Task) -> str:
        self._world = world = settled_for_task(self._world, NAME, task.payload)
        self._course.begin(world.max_steps)
        self._goods = catalogue(world.world, world.products)
        self._goal = draw(task, lambda rng: _goal(self._goods, world, rng), lambda goal: goal.key)
        rules = f"{RULES}\n" if world.rules else ""
        return f"{rules}{self._goal.words}\n{shown(self._page)}"

    async def step(self, action: str) -> Step:
        self._course.take()
        if isinstance(self._page, SearchPage):
            return self._searched(_query(spoken(action)))
        link = _link(self._page, spoken(action))
        if link is None:
            return self._step(f"there is no such link here\n{shown(self._page)}")
        if link == BUY and isinstance(self._page, ItemPage):
            return self._bought(self._page)
        self._page = follow(self._page, link)
        return self._step(shown(self._page))

    async def close(self) -> None:
        pass

    def solve(self) -> str:
        """The next step towards the first thing in the results that is all that is wanted."""
        match self._page:
            case SearchPage():
                return f"search[{self._goal.query}]"
            case ResultsPage() as page:
                return f"click[{self._best_link(page)}]"
            case ItemPage() as page:
                return f"click[{self._best_link_of_item(page)}]"
            case _:
                assert_never(self._page)

    def wander(self, rng: Random) -> str:
        """Some words of what is wanted, or any link."""
        choices = links(self._page)
        if choices:
            return f"click[{rng.choice(choices)}]"
        words = words_of(self._goal.query)
        return f"search[{' '.join(rng.sample(words, rng.randint(1, min(3, len(words)))))}]"

    def _searched(self, query: str | None) -> Step:
        if query is None:
            return self._step(f"say what to look for\n{shown(self._page)}")
        found = self._goods.search(query)
        if not found:
            return self._step(f"nothing found\n{shown(self._page)}")
        self._page = ResultsPage(found=found, per_page=self._world.per_page)
        return self._step(shown(self._page))

    def _bought(self, page: ItemPage) -> Step:
        purchase = scored(self._goal, page.product, page.chosen)
        info = self._info | {"bought": page.product.number, "purchase": msgspec.structs.asdict(purchase)}
        return self._course.step(f"you bought {page.product.number}", info, reward=purchase.total, ended=True)

    def _step(self, said: str) -> Step:
        return self._course.step(said, self._info)

    @property
    def _info(self) -> dict[str, Any]:
        return {"problem": self._goal.key}

    def _best_link(self, page: ResultsPage) -> str:
        place = _first_match(self._goal, page)
        if place is None:
            return BACK
        number = place // page.per_page
        if number == page.number:
            return page.found[place].number
        return NEXT if number > page.number else PREVIOUS

    def _best_link_of_item(self, page: ItemPage) -> str:
        if page.tab or not self._goal.is_met_by(page.product):
            return PREVIOUS
        missing = [f"{name}: {value}" for name, value in self._goal.options if page.chosen.get(name) != value]
        return missing[0] if missing else BUY


def _goal(goods: Catalogue, world: World, rng: Random) -> Goal:
    """A goal that can be met in time."""
    for _ in range(TRIES):
        goal = any_goal(goods, rng)
        page = ResultsPage(found=goods.search(goal.query), per_page=world.per_page)
        place = _first_match(goal, page)
        clicks = len(goal.options) + 2  # the thing itself, its options, buying it
        if place is not None and 1 + place // page.per_page + clicks <= world.max_steps:
            return goal
    raise EnvError(f"no goal can be met in {world.max_steps} steps in {TRIES} tries; raise {NAME}.max_steps")


def _first_match(goal: Goal, page: ResultsPage) -> int | None:
    """Where in the results the first thing stands that is all that is wanted."""
    return next((place for place, product in enumerate(page.found) if goal.is_met_by(product)), None)


def _query(said: str) -> str | None:
    """The last thing that is searched for; None if there is nothing."""
    found = _SEARCH.findall(said) or _SEARCH_BARE.findall(said)
    return (found[-1].strip() or None) if found else None


def _link(page: Page, said: str) -> str | None:
    """The last link that is clicked; without brackets the last that is mentioned."""
    clicked = _CLICK.findall(said)
    if clicked:
        return meant(page, clicked[-1])
    return meant(page, said) or mentioned(page, said)
