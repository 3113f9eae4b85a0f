"""Properties of the parts that are made of data: each against a model that is slow and plain."""

from itertools import combinations
from math import floor

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windrow.core import events as e
from windrow.core import journal
from windrow.core.engines import AFFINITY, Engine, EngineBook
from windrow.core.groups import Group, Rank
from windrow.core.ledger import empty_ledger
from windrow.core.ordering import RankedQueue
from windrow.core.settings import ModeSettings, OnStale, Settings
from windrow.core.shares import WINDOW_CAPS, TagBook
from windrow.core.staleness import admission_cap, hard_lag, must_take
from windrow.errors import ConfigError
from windrow.types import MODES, AttemptId, Mode, Reason, from_json, to_json

names = st.text(max_size=4)
small = st.integers(0, 5)
seconds = st.floats(0, 1e6)

# staleness


@st.composite
def bounded(draw: st.DrawFn) -> ModeSettings:
    size = draw(st.integers(1, 8))
    batch = size * draw(st.integers(1, 40))
    staleness = draw(st.one_of(st.integers(0, 4).map(float), st.floats(0, 4)))
    policies: list[OnStale | None] = ["wait", "keep", "drop", None]
    policy = draw(st.sampled_from(policies))
    try:
        return ModeSettings(group_size=size, batch_size=batch, staleness=staleness, on_stale=policy)
    except ConfigError:
        assume(False)
        raise


@given(bounded(), st.integers(1, 60))
def test_the_cap_is_the_largest_number_of_groups_that_the_bound_allows(chosen: ModeSettings, batch_groups: int):
    """At least one batch; η + 1 batches; whole versions only under a hard bound."""
    cap = admission_cap(chosen, batch_groups)
    bound = chosen.staleness if hard_lag(chosen) is None else floor(chosen.staleness)
    assert cap >= batch_groups
    assert cap <= (bound + 1) * batch_groups + 1e-6
    assert cap + 1 > (bound + 1) * batch_groups


@st.composite
def crowds(draw: st.DrawFn) -> tuple[dict[int, int], int, int, int]:
    """Living groups by version, the version now, the bound, and the groups in a batch."""
    lag = draw(st.integers(0, 3))
    batch = draw(st.integers(1, 3))
    version = lag + 1
    living = {version - age: draw(st.integers(0, batch + 1)) for age in range(lag + 1)}
    return {born: count for born, count in living.items() if count}, version, lag, batch


@given(crowds(), st.integers(1, 3))
@settings(max_examples=300)
def test_a_batch_may_go_exactly_if_no_group_that_stays_is_forced_over_the_bound(
    crowd: tuple[dict[int, int], int, int, int], wanted: int
):
    """Against every selection of groups and every later schedule of one batch per version."""
    living, version, lag, batch = crowd
    later = max(0, batch - wanted)
    assume(can_survive(members(living), version, lag, batch, batch))  # not lost already
    demands = must_take(living, version=version, lag=lag, batch_groups=batch, later=later, wanted=wanted)
    for taken in selections(members(living), min(wanted, sum(living.values()))):
        fits = all(sum(1 for born in taken if born <= oldest) >= need for oldest, need in demands)
        rest = members(living)
        for born in taken:
            rest.remove(born)
        assert fits == can_survive(rest, version, lag, batch, later), f"taking {taken} of {living} at {version}"


def members(living: dict[int, int]) -> list[int]:
    return sorted(born for born, count in living.items() for _ in range(count))


def selections(crowd: list[int], count: int) -> set[tuple[int, ...]]:
    return {tuple(chosen) for chosen in combinations(crowd, count)}


def can_survive(rest: list[int], version: int, lag: int, batch: int, now: int) -> bool:
    """Whether the oldest can always leave in time: `now` more at this version, a batch at each later one."""
    left = sorted(rest)[now:]
    while left:
        version += 1
        if version - left[0] > lag:
            return False
        left = left[batch:]
    return True


# shares


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1),
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
    st.integers(4, 20),
)
def test_over_a_window_each_tag_gets_its_share(weights: dict[str, float], rounds: list[int], cap: int):
    """Whatever is asked for arrives and is trained on: then no tag is far from its weight's part at any time."""
    book = TagBook(weights)
    got = dict.fromkeys(weights, 0)
    for room in rounds:
        asked = book.ask(room, cap)
        assert sum(count for _, count in asked) == room
        for tag, count in asked:
            got[tag] += count
            for _ in range(count):
                book.arrive(tag)
                book.settle(tag, used=True)
        for tag, weight in weights.items():
            due = sum(got.values()) * weight / sum(weights.values())
            assert abs(got[tag] - due) <= len(weights)
    assert book.asked == 0
    assert all(share.alive == 0 for share in book.table.values())


@given(st.integers(1, 200), st.integers(1, 12), st.floats(0.25, 4.0))
def test_a_tag_that_could_not_be_served_is_not_repaid_without_end(starved: int, cap: int, weight: float):
    """While b is away a takes everything; when b is back its claim is limited to the window."""
    book = TagBook({"a": 1.0, "b": weight})
    book.table["b"].ended = True
    for _ in range(starved):
        book.ask(1, cap)
        book.arrive("a")
        book.settle("a", used=True)
    book.table["b"].ended = False
    claim = 0
    while book.ask(1, cap)[0][0] == "b":
        book.arrive("b")
        book.settle("b", used=True)
        claim += 1
        assert claim <= WINDOW_CAPS * cap * weight / (1.0 + weight) + 2


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "arrive", "train", "drop", "end"])), max_size=60)
)
def test_tags_count_what_is_asked_and_what_lives(steps: list[tuple[str, str]]):
    book = TagBook({"a": 1.0, "b": 2.0, "c": 0.5})
    asked, alive = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for tag, step in steps:
        if step == "ask":
            for some, count in book.ask(2, 6):
                assert not book.table[some].ended
                asked[some] += count
        elif step == "arrive" and asked[tag]:
            book.arrive(tag)
            asked[tag], alive[tag] = asked[tag] - 1, alive[tag] + 1
        elif step in ("train", "drop") and alive[tag]:
            book.settle(tag, used=step == "train")
            alive[tag] -= 1
        elif step == "end":
            book.end(tag)
            asked[tag] = 0
    assert {tag: (share.asked, share.alive) for tag, share in book.table.items()} == {
        tag: (asked[tag], alive[tag]) for tag in "abc"
    }


# the order of play

ranks = st.tuples(st.integers(0, 1), st.integers(0, 1), st.floats(-9, 0), st.integers(0, 3))


@given(st.lists(st.tuples(st.integers(0, 12), st.none() | ranks, st.booleans()), max_size=300))
def test_a_ranked_queue_is_a_sorted_list(steps: list[tuple[int, tuple[int, int, float, int] | None, bool]]):
    """Groups come, change place, leave and are forgotten; the best is always the first of those that are there."""
    groups = {number: group(number) for number in range(13)}
    queue, model = RankedQueue(), dict[int, Rank]()
    for number, place, look in steps:
        if place is None:
            queue.remove(groups[number])
            model.pop(number, None)
        else:
            model[number] = (*place, number)
            queue.put(groups[number], model[number])
        assert queue.size == len(model)
        if look and model:
            assert queue.best(groups) == min(model.values())
    while model:
        first = min(model.values())
        assert queue.best(groups) == first
        queue.remove(groups[first[-1]])
        del model[first[-1]]


def group(number: int) -> Group:
    return Group(id=number, mode="train", ordinal=0, tag="", kind="", task="", size=1, spares=0, arrived_at=0.0)


# engines

WHATS = ("book", "unbook", "hold", "free", "away", "back", "val", "all", "load", "lose")
engine_steps = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(WHATS)), max_size=80)


@given(engine_steps, st.integers(0, 4))
@settings(max_examples=150)
def test_the_chosen_engine_is_the_one_that_a_search_would_find(steps: list[tuple[int, str]], known: int):
    """Whatever happens to engines, the heaps give what a look at every engine gives."""
    book = EngineBook()
    book.version = 1
    for number in range(5):
        join(book, number)
    for count, (number, step) in enumerate(steps):
        change(book, number, step, count)
        for mode in MODES:
            for name in ("", f"e{known}"):
                chosen = book.choose(mode, name)
                assert (chosen.id if chosen else None) == search(book, mode, name), f"after {steps[: count + 1]}"


def join(book: EngineBook, number: int) -> None:
    engine = Engine(f"e{number}", book.joined, 1 + number % 2, (), 1, state="serving")
    book.joined += 1
    book.table[engine.id] = engine
    book.post(engine)


def change(book: EngineBook, number: int, step: str, count: int) -> None:
    engine = book.table.get(f"e{number}")
    if engine is None:
        join(book, number)
        return
    attempt = AttemptId(number, count % 3)
    work = 1.0 + attempt.index
    if step == "book" and attempt not in engine.attempts:
        book.book(engine, attempt, work)
    elif step == "unbook" and attempt in engine.attempts:
        book.unbook(engine, attempt, work)
    elif step == "lose":
        del book.table[engine.id]
    elif step == "hold":
        engine.holds["somebody"] = "drain"
    elif step == "away":
        engine.state = "away"
    elif step == "load":
        engine.version = count % 2
        book.post(engine)
    elif step in ("free", "back", "val", "all"):
        reopen(book, engine, step)


def reopen(book: EngineBook, engine: Engine, step: str) -> None:
    """What the fleet does when an engine may take work that it could not take before."""
    if step == "free":
        engine.holds.clear()
    elif step == "back":
        engine.state = "serving"
    else:
        engine.mode = "val" if step == "val" else None
        engine.posted = -1.0
    book.post(engine)


def search(book: EngineBook, mode: Mode, known: str) -> str | None:
    """The least loaded that may take it, a reserved one last; a familiar one is kept while it is near."""
    usable = [engine for engine in book.table.values() if book.is_usable(engine, mode)]
    if not usable:
        return None
    best = min(usable, key=lambda engine: (engine.load, engine.mode is not None, engine.joined))
    familiar = next((engine for engine in usable if engine.id == known), None)
    if familiar is None:
        return best.id
    typical = familiar.work / max(1, len(familiar.attempts))
    near = familiar.load <= best.load + AFFINITY * typical / familiar.capacity
    return familiar.id if near else best.id


# what is written down


@given(st.floats(0, 1e9), st.one_of(*(st.from_type(kind) for kind in e.AnyEvent.__args__)))
@settings(max_examples=300)
def test_an_event_is_read_back_from_its_line(now: float, event: e.AnyEvent):
    line = journal.line(now, event)
    assert b"\n" not in line
    _, entries = journal.read([journal.header(Settings()), line])
    assert [(entry.now, entry.event) for entry in entries] == [(now, event)]
    assert journal.line(now, event) == line


@given(bounded(), bounded(), st.dictionaries(names, st.integers(1, 9), max_size=3), seconds, small)
def test_settings_are_read_back(train: ModeSettings, val: ModeSettings, kinds: dict[str, int], beat: float, few: int):
    chosen = Settings(train=train, val=val, kinds=kinds, beat_s=beat, env_retries=few, backoff_s=beat)
    assert from_json(to_json(chosen), Settings) == chosen
    assert journal.read([journal.header(chosen)])[0] == chosen


# the ledger

reasons: st.SearchStrategy[Reason] = st.sampled_from(
    ["stale", "filtered", "spare", "failed", "poisoned", "lost", "tail"]
)


@given(st.lists(st.tuples(st.sampled_from(["admit", "drop", "deliver", "train"]), reasons, small, small), max_size=80))
def test_a_ledger_always_balances(steps: list[tuple[str, Reason, int, int]]):
    """Only what lives is dropped or delivered, only what is delivered is trained: then nothing is missing, ever."""
    ledger = empty_ledger()
    wasted = tokens = 0
    for step, why, amount, lag in steps:
        if step == "admit":
            ledger.groups.admit()
            ledger.attempts.admit()
        elif step == "drop" and ledger.attempts.alive:
            ledger.groups.drop(why)
            ledger.throw_away(why, amount, float(amount))
            wasted, tokens = wasted + 1, tokens + amount
        elif step == "deliver" and ledger.groups.alive:
            ledger.deliver_group(1, lag)
        elif step == "train" and ledger.groups.delivered:
            ledger.groups.train(1)
            ledger.attempts.train(1)
        assert ledger.groups.balance == ledger.attempts.balance == 0
    assert sum(waste.attempts for waste in ledger.waste.values()) == wasted
    assert sum(waste.tokens for waste in ledger.waste.values()) == tokens
    assert ledger.lag_sum <= ledger.lag_max * ledger.lags
