"""The shop: its world, its pages, its score, and a visit."""

import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.playing import episode, observations_elsewhere, problems, scores, solved, task, told, wandered

from windrow.envs.protocol import Solvable, Wanderable
from windrow.envs.shipped import describe, find
from windrow.envs.shop import ShopEnv
from windrow.envs.shop.catalogue import Catalogue, Product, catalogue
from windrow.envs.shop.goals import Goal, scored
from windrow.envs.shop.pages import ItemPage, ResultsPage, SearchPage, follow, links, meant, mentioned, shown
from windrow.errors import ConfigError, EnvError

TASKS = 1_000


def product(number: str = "B1", **changes: Any) -> Product:
    usual: dict[str, Any] = {
        "brand": "wren",
        "department": "clothing",
        "kind": "shirt",
        "attributes": ("cotton", "slim fit", "wrinkle free"),
        "options": {"color": ("red", "blue"), "size": ("s", "m")},
        "cents": 1999,
    }
    return Product(number=number, **usual | changes)


GOAL = Goal(
    kind="shirt",
    department="clothing",
    attributes=("cotton", "wrinkle free"),
    options=(("color", "red"), ("size", "m")),
    dollars=20,
)
RIGHT = {"color": "red", "size": "m"}
GOODS = (
    product("B1"),
    product("B2", kind="dress", attributes=("wool", "loose fit")),
    product("B3", attributes=("wool", "cotton")),
)
RESULTS = ResultsPage(found=GOODS, per_page=2)
ITEM = ItemPage(product=GOODS[0], results=RESULTS)


@pytest.mark.parametrize(
    ("changes", "chosen", "score"),
    [
        ({}, RIGHT, 1.0),  # 1 * (2 + 2 + 1) / 5
        ({}, {"color": "red"}, 0.8),  # 1 * (2 + 1 + 1) / 5
        ({}, {"color": "blue", "size": "s"}, 0.6),  # 1 * (2 + 0 + 1) / 5
        ({}, {}, 0.6),
        ({"cents": 2000}, RIGHT, 1.0),
        ({"cents": 2001}, RIGHT, 0.8),  # 1 * (2 + 2 + 0) / 5
        ({"attributes": ("wool", "cotton")}, RIGHT, 0.8),  # 1 * (1 + 2 + 1) / 5
        ({"attributes": ("wool", "linen"), "cents": 9000}, {}, 0.0),  # 1 * 0 / 5
        ({"kind": "dress"}, RIGHT, 0.5),  # 0.5 * 5 / 5
        ({"kind": "dress", "cents": 9000}, {"size": "m"}, 0.3),  # 0.5 * (2 + 1 + 0) / 5
        ({"kind": "boots", "department": "shoes"}, RIGHT, 0.0),  # 0 * 5 / 5
        ({"options": {"size": ("s", "m")}}, RIGHT, 0.8),  # what is not on offer cannot be chosen
    ],
)
def test_a_purchase_scores_as_worked_by_hand(changes: dict[str, Any], chosen: dict[str, str], score: float):
    assert scored(GOAL, product(**changes), chosen).total == pytest.approx(score, abs=1e-12)


def test_a_purchase_tells_its_parts():
    purchase = scored(GOAL, product(cents=2500), {"color": "red"})
    assert (purchase.type_match, purchase.attributes, purchase.options, purchase.price) == (1.0, 2, 1, 0)


def test_a_goal_in_words():
    assert GOAL.words == (
        "i need shirt that is cotton and wrinkle free, with color red and size m, for 20 dollars or less"
    )
    assert GOAL.key == "shirt|cotton,wrinkle free|color=red,size=m|20"


def test_the_search_ranks_by_words_in_the_title_then_by_number():
    goods = Catalogue(GOODS)
    assert [each.number for each in goods.search("Cotton SHIRT!")] == ["B1", "B3"]
    assert [each.number for each in goods.search("wool loose dress")] == ["B2", "B3"]
    assert [each.number for each in goods.search("clothing clothing")] == ["B1", "B2", "B3"]
    assert goods.search("wrinkle free") == (), "what stands in no title is not found"
    assert goods.search("") == ()


def test_a_results_page():
    assert shown(RESULTS) == (
        "page 1 of 2, 3 found\nB1 wren cotton shirt, slim fit $19.99\nB2 wren wool dress, loose fit $19.99\n"
        "click: number, next, back to search"
    )
    assert links(RESULTS) == ["B1", "B2", "next", "back to search"]
    assert links(follow(RESULTS, "next")) == ["B3", "previous", "back to search"]
    assert follow(follow_results("next"), "previous") == RESULTS


def follow_results(link: str) -> ResultsPage:
    page = follow(RESULTS, link)
    assert isinstance(page, ResultsPage)
    return page


def test_an_item_page():
    assert follow(RESULTS, "B1") == ITEM
    assert shown(ITEM) == (
        "B1 wren cotton shirt, slim fit $19.99\ncolor: red, blue\nsize: s, m\n"
        "click: option: value, features, description, previous, back to search, buy now"
    )
    assert links(ITEM)[:4] == ["color: red", "color: blue", "size: s", "size: m"]
    assert follow(ITEM, "back to search") == SearchPage()
    assert follow(ITEM, "previous") == RESULTS


def test_a_chosen_option_is_shown_and_can_be_changed():
    red = follow(ITEM, "color: red")
    assert isinstance(red, ItemPage)
    assert "color (red): red, blue" in shown(red)
    blue = follow(red, "color: blue")
    assert isinstance(blue, ItemPage)
    assert blue.chosen == {"color": "blue"}


def test_features_tell_what_the_title_does_not():
    features = follow(ITEM, "features")
    assert isinstance(features, ItemPage)
    assert shown(features) == ("features of B1\n- cotton\n- slim fit\n- wrinkle free\nclick: previous, back to search")
    assert follow(features, "previous") == ITEM
    described = follow(ITEM, "description")
    assert shown(described).startswith("B1, clothing: this shirt by wren is wrinkle free\n")


@pytest.mark.parametrize(
    ("said", "link"),
    [
        ("b1", None),
        ("Color: RED", "color: red"),
        ("red", "color: red"),
        ("size m", "size: m"),
        ("size=m", "size: m"),
        ("Buy Now", "buy now"),
        ("buy", "buy now"),
        ("< prev", "previous"),
        ("Back to Search", "back to search"),
        ("features", "features"),
        ("green", None),
        ("", None),
    ],
)
def test_what_a_click_means_on_an_item(said: str, link: str | None):
    assert meant(ITEM, said) == link


def test_a_value_that_two_options_have_must_be_named():
    page = ItemPage(product=product(options={"size": ("6", "7"), "pack": ("6", "12")}), results=RESULTS)
    assert (meant(page, "6"), meant(page, "pack: 6"), meant(page, "12")) == (None, "pack: 6", "pack: 12")


def test_the_link_that_is_mentioned_last_counts():
    assert mentioned(ITEM, "not the features, I buy now.") == "buy now"
    assert mentioned(ITEM, "buy now or look at the description?") == "description"
    assert mentioned(RESULTS, "let us see B2") == "B2"
    assert mentioned(RESULTS, "let us see B22") is None


def begun(actions: list[str], seed: int = 1, **settings: Any) -> list[Any]:
    return [step.observation for step in told(ShopEnv(**settings), task(seed), actions).steps]


def test_a_visit_begins_with_rules_goal_and_a_search():
    first = str(told(ShopEnv(), task(1), []).first).split("\n")
    assert (
        first[0] == "answer search[words] on the search page, click[link] on any other; click[buy now] ends the visit"
    )
    assert first[1].startswith("i need ")
    assert first[2:] == ["search page: search[words]"]
    assert str(told(ShopEnv(rules=False), task(1), []).first).startswith("i need ")


@pytest.mark.parametrize(
    "said",
    ["search[cotton shirt]", "Search [cotton shirt]", "search: cotton shirt", "<answer>search(cotton shirt)</answer>",
     "I will search for cotton shirt", "search[boots] no, search[cotton shirt]"],
)  # fmt: skip
def test_a_search_is_understood_in_many_ways(said: str):
    assert begun([said]) == begun(["search[cotton shirt]"])
    assert str(begun([said])[0]).startswith("page 1 of ")


@pytest.mark.parametrize(
    "said", ["click[B1000]", "Click [ b1000 ]", "click: B1000", "<answer>b1000</answer>", "B1000", "i click on B1000."]
)
def test_a_click_is_understood_in_many_ways(said: str):
    assert str(begun(["search[shirt]", said])[1]).startswith("B1000 ")


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (["hm"], "say what to look for\nsearch page: search[words]"),
        (["search[]"], "say what to look for\nsearch page: search[words]"),
        (["click[buy now]"], "say what to look for\nsearch page: search[words]"),
        (["search[zebra]"], "nothing found\nsearch page: search[words]"),
        (["search[shirt]", "hm"], "there is no such link here\npage 1 of 2, 10 found"),
        (["search[shirt]", "click[previous]"], "there is no such link here\npage 1 of 2, 10 found"),
        (["search[shirt]", "click[buy now]"], "there is no such link here\npage 1 of 2, 10 found"),
        (["search[shirt]", "search[boots]"], "there is no such link here\npage 1 of 2, 10 found"),
        (["search[shirt]", "click[B1000]", "click[features]", "buy now"], "there is no such link here\nfeatures of B"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(actions: list[str], said: str):
    assert str(begun(actions)[-1]).startswith(said)


def test_pages_turn_to_and_fro():
    turned = begun(["search[shirt]", "click[next]", "click[previous]", "click[next]", "click[back to search]"])
    assert [str(page)[:11] for page in turned[:4]] == ["page 1 of 2", "page 2 of 2", "page 1 of 2", "page 2 of 2"]
    assert turned[4] == "search page: search[words]"


def test_buying_ends_the_visit_with_its_parts():
    *_, last = told(ShopEnv(), task(1), ["search[shirt]", "click[B1000]", "click[buy now]"]).steps
    assert (last.terminated, last.truncated, last.observation) == (True, False, "you bought B1000")
    assert last.info["bought"] == "B1000"
    assert set(last.info["purchase"]) == {"type_match", "attributes", "options", "price", "total"}
    assert last.reward == last.info["purchase"]["total"]


def test_without_steps_left_it_is_cut_off():
    played = told(ShopEnv(max_steps=8), task(1), ["hm"] * 8)
    assert [step.truncated for step in played.steps] == [False] * 7 + [True]
    assert (played.score, str(played.steps[-1].observation)[-13:]) == (0.0, "no steps left")
    assert "|" in played.problem


def test_after_the_end_a_step_is_refused():
    with pytest.raises(EnvError, match="shop is over; make a new environment"):
        told(ShopEnv(), task(1), ["search[shirt]", "click[B1000]", "click[buy now]", "search[shirt]"])


def test_solve_gets_all_that_is_wanted_on_a_thousand_held_out_tasks():
    assert set(scores(ShopEnv, TASKS, solve=True)) == {1.0}


def test_a_wanderer_gets_little_of_it():
    got = scores(ShopEnv, TASKS, solve=False)
    assert all(0.0 <= score <= 1.0 for score in got)
    assert 0.05 < sum(got) / TASKS < 0.3


def test_goals_need_more_than_one_page_of_results():
    visits = [solved(ShopEnv(), task(seed)) for seed in range(100)]
    assert any("click[next]" in visit.actions for visit in visits)
    assert any("size" in action for visit in visits for action in visit.actions)


@given(
    seed=st.integers(0, 10_000),
    world=st.integers(0, 3),
    products=st.sampled_from([40, 90]),
    per_page=st.integers(2, 20),
    detour=st.lists(
        st.sampled_from(["search[free]", "click[next]", "click[features]", "click[previous]", "hm", "click[B1001]"]),
        max_size=6,
    ),
)
def test_solve_finds_back_after_a_detour(seed: int, world: int, products: int, per_page: int, detour: list[str]):
    env = ShopEnv(world=world, products=products, per_page=per_page, max_steps=60)
    actions = iter(detour)
    assert episode(env, task(seed), lambda it: next(actions, "") or it.solve()).score == 1.0


def test_solve_leaves_a_wrong_thing_and_results_without_the_right_one():
    wrong = iter(["search[clothing]", "click[B1000]", "click[size: m]", "click[description]"])
    visit = episode(ShopEnv(), task(3), lambda it: next(wrong, "") or it.solve())
    assert visit.score == 1.0
    assert {"click[previous]", "click[back to search]"} <= set(visit.actions)


def test_solve_closes_the_features_of_the_right_thing():
    usual = solved(ShopEnv(), task(3)).actions
    curious = iter([*usual[:-1], "click[features]"])
    visit = episode(ShopEnv(), task(3), lambda it: next(curious, "") or it.solve())
    assert visit.actions == [*usual[:-1], "click[features]", "click[previous]", "click[buy now]"]


def test_train_and_held_out_share_no_goal():
    train, held_out = problems(ShopEnv, "train", 2_000), problems(ShopEnv, "held_out", 2_000)
    assert not train & held_out
    assert min(len(train), len(held_out)) > 1_500


def test_the_same_task_is_the_same_visit():
    for seed in range(50):
        first, again = (wandered(ShopEnv(), task(seed)) for _ in range(2))
        assert first == again


def test_the_same_task_is_the_same_visit_in_another_process():
    assert observations_elsewhere("shop", 7) == str(wandered(ShopEnv(), task(7)).texts)


def test_a_world_is_made_once_and_follows_from_its_seed():
    assert catalogue(0, 400) is catalogue(0, 400)
    assert catalogue(0, 40).products == catalogue(0, 400).products[:40]
    assert catalogue(1, 40).products != catalogue(0, 40).products
    assert len({each.number for each in catalogue(0, 2000).products}) == 2000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"products": 10}, r"shop\.products must be an integer from 40 to 2000, got 10"),
        ({"produtcs": 50}, r"unknown setting shop\.produtcs; did you mean products\?"),
        ({"per_page": 1}, r"shop\.per_page must be an integer from 2 to 20, got 1"),
        ({"max_steps": 3}, r"shop\.max_steps must be an integer of 8 or more, got 3"),
        ({"world": "earth"}, r"shop\.world must be an integer, got 'earth'"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ShopEnv(**given)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(ShopEnv().start(task(payload=given)))


def test_a_task_may_bring_its_own_settings():
    (step,) = told(ShopEnv(), task(payload={"products": 40, "per_page": 2}), ["search[clothing]"]).steps
    assert str(step.observation).startswith("page 1 of 3, 5 found")


def test_it_is_shipped_and_goes_into_other_processes():
    shipped = describe("shop")
    assert (shipped.kind, shipped.tag) == ("multi-turn", "shop")
    make = pickle.loads(pickle.dumps(find("shop", world=5)))  # noqa: S301 -- our own
    assert solved(make(), task()).score == 1.0
    assert isinstance(make(), Solvable)
    assert isinstance(make(), Wanderable)
