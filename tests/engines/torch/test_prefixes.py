"""What has been computed is not computed again, and nobody gets what is not his."""

import asyncio

import numpy as np
import pytest
import torch
from tests.engines.kits import run_async
from tests.engines.torch.given import ask, begun, expected, hear, hear_all, prompt, request, started

from windrow.engines.torch import TorchEngine
from windrow.engines.torch.forward import MOST_PREFILL_TOKENS, PREFILL_TOKENS, Forward
from windrow.engines.torch.slots import WORTH_COPYING, Slots
from windrow.engines.torch.store import KvStore
from windrow.engines.torch.turns import Turn
from windrow.requests import Chunk
from windrow.tiny import tiny_model
from windrow.types import but


def grown(engine: TorchEngine) -> tuple[int, int]:
    """Tokens reused, tokens computed as prompts."""
    counters = engine.counters()
    return counters.prefix_tokens_reused, counters.prefill_tokens


@run_async
async def test_the_next_turn_goes_on_in_its_slot():
    async with started() as engine:
        first = await hear(engine, request(0, size=40, max_tokens=10))
        assert grown(engine) == (0, 40)
        history = np.concatenate([first.asked.prompt, np.array(first.tokens, np.int32), prompt(5, 1)])
        second = await hear(engine, request(1, prompt=history))
        assert grown(engine) == (49, 40 + 6), "all but the last sampled token, which was never fed"
        assert np.allclose(second.logprobs, expected(engine.model, second), atol=1e-4)


@run_async
async def test_the_rest_of_an_interrupted_turn_costs_one_token():
    async with started() as engine:
        async with asyncio.TaskGroup() as group:
            heard = ask(group, engine, request(0, size=40, max_tokens=100))
            await begun(heard)
            await engine.suspend("interrupt")
        await engine.resume()
        before = grown(engine)
        await hear(engine, heard.rest("rest"))
        assert grown(engine) == (before[0] + 40 + len(heard.tokens) - 1, before[1] + 1)


@run_async
async def test_siblings_compute_their_prompt_once():
    """They come together: the others wait for the first, a token at a time, and copy."""
    async with started(capacity=8) as engine:
        many = [request(n, prompt=prompt(120), family="g0", seed=n) for n in range(8)]
        for heard in await hear_all(engine, many):
            assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=1e-4)
        reused, computed = grown(engine)
        assert reused + computed == 8 * 120
        assert computed < 120 + 8 * 4


@run_async
async def test_a_sibling_copies_from_one_that_is_still_running():
    async with started() as engine, asyncio.TaskGroup() as group:
        first = ask(group, engine, request(0, size=100, max_tokens=100))
        await begun(first)
        await engine.suspend("freeze")
        other = np.concatenate([first.asked.prompt[:80], prompt(20, 5)])
        ask(group, engine, request(1, prompt=other))
        await engine.resume()
        late = ask(group, engine, request(2, prompt=other, seed=3))
        await begun(late)
        assert engine.counters().prefix_tokens_reused >= 80
        await engine.interrupt([first.asked.id])
    assert np.allclose(late.logprobs, expected(engine.model, late), atol=1e-4)


@run_async
async def test_a_sibling_whose_forerunner_goes_away_computes_for_itself():
    async with started(context=2048) as engine, asyncio.TaskGroup() as group:
        await engine.suspend("drain")
        first = ask(group, engine, request(0, prompt=prompt(1500), family="g"))
        second = ask(group, engine, request(1, prompt=prompt(1500), family="g", max_tokens=4))
        await asyncio.sleep(0)
        await engine.resume()
        await engine.interrupt([first.asked.id])
        await begun(second)
    assert first.finish == "interrupted"
    assert np.allclose(second.logprobs, expected(engine.model, second), atol=1e-4)


@run_async
async def test_the_longest_unused_is_given_up_first():
    async with started(capacity=2) as engine:
        asked = [request(n, size=50, max_tokens=2) for n in range(3)]
        for one in (asked[0], asked[1], but(asked[0], id="again"), asked[2]):
            await hear(engine, one)
        reused = engine.counters().prefix_tokens_reused
        await hear(engine, but(asked[1], id="forgotten"))
        assert engine.counters().prefix_tokens_reused == reused
        await hear(engine, but(asked[2], id="remembered"))
        assert engine.counters().prefix_tokens_reused == reused + 49


# the table alone


class Nobody:
    """Listens to nothing."""

    def put(self, item: Chunk | Exception) -> None:
        raise AssertionError(item)


def seated(slots: Slots, tokens: np.ndarray, number: int = 0) -> Turn:
    """A turn with all of its prompt in the store."""
    turn = Turn(request(number, prompt=tokens), Nobody(), ())
    slots.seat(turn, tokens.size + 20)
    slots.done[turn.slot] = tokens.size
    return turn


def table(count: int = 4) -> Slots:
    return Slots(count, 259, KvStore(count))


@pytest.mark.parametrize("shared", [0, 1, 63, 64, 65, 127, 128, 129, 199])
def test_the_common_beginning_is_found_to_the_token(shared: int):
    slots = table()
    seated(slots, prompt(200))
    other = np.concatenate([prompt(200)[:shared], 255 - prompt(60)]).astype(np.int32)
    if shared < 200 and other[shared] == prompt(200)[shared]:
        other[shared] = (other[shared] + 1) % 250
    found = slots.match(other, computed=True)
    assert (found.slot, found.shared) == ((0, shared) if shared else (-1, 0))


def test_the_last_token_of_a_prompt_is_always_computed():
    slots = table()
    seated(slots, prompt(64))
    assert slots.match(prompt(64), computed=True).shared == 63


def test_only_what_is_in_the_store_counts_as_computed():
    slots = table()
    turn = seated(slots, prompt(64))
    slots.done[turn.slot] = 20
    assert slots.match(prompt(64), computed=True).shared == 20
    assert slots.match(prompt(64), computed=False).shared == 63


def test_the_longest_of_several_is_found():
    slots = table()
    for number, size in enumerate((10, 90, 40)):
        seated(slots, np.concatenate([prompt(size), prompt(30, 7 + number)]).astype(np.int32), number)
    assert slots.match(prompt(200), computed=True).slot == 1


def test_running_slots_are_the_first_ones_and_everything_moves_along():
    slots = table()
    turns = [seated(slots, prompt(30 + n, n), n) for n in range(4)]
    slots.leave(turns[1].slot)
    slots.leave(turns[0].slot)
    assert slots.busy == 2
    assert [turn is not None for turn in slots.turns] == [True, True, False, False]
    for number in (2, 3):
        slot = turns[number].slot
        assert slots.turns[slot] is turns[number]
        assert (slots.tokens[slot, : 30 + number] == prompt(30 + number, number)).all()
        assert slots.seed[slot] == 1000 + number


def test_an_idle_beginning_is_continued_and_a_shared_one_copied():
    slots = table()
    one = seated(slots, prompt(60))
    slots.leave(one.slot)
    longer = seated(slots, np.concatenate([prompt(60), prompt(9, 3)]).astype(np.int32), 1)
    assert (slots.done[1:] == 0).all(), "it took the slot that it continues"
    slots.leave(longer.slot)
    seated(slots, np.concatenate([prompt(60)[:40], prompt(9, 4)]).astype(np.int32), 2)
    assert sorted(slots.done[:2].tolist()) == [49, 69], "the other is still there"


def test_a_few_tokens_are_not_worth_a_copy():
    slots = table()
    seated(slots, prompt(60))
    turn = Turn(request(1, prompt=np.concatenate([prompt(60)[: WORTH_COPYING - 1], prompt(9, 4)])), Nobody(), ())
    assert slots.seat(turn, 50) == 0


# many at once


def relative(tokens: np.ndarray, number: int, family: str) -> Turn:
    return Turn(but(request(number, prompt=tokens), family=family), Nobody(), ())


def ended(slots: Slots, tokens: np.ndarray, number: int, family: str) -> None:
    """A turn that was computed and has left."""
    turn = relative(tokens, number, family)
    slots.seat(turn, tokens.size + 20)
    slots.done[turn.slot] = tokens.size
    slots.leave(turn.slot)


def more(tokens: np.ndarray, number: int) -> np.ndarray:
    return np.concatenate([tokens, prompt(9, 50 + number)]).astype(np.int32)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0), (2,), (1, 3)])
def test_turns_that_go_on_find_what_they_go_on_from_in_any_order(order: tuple[int, ...]):
    slots = table()
    for number in range(4):
        ended(slots, prompt(30 + number, number), number, f"g{number // 2}")
    turns = [relative(more(prompt(30 + n, n), n), n, f"g{n // 2}") for n in order]
    pairs = slots.continued(turns)
    assert [turn for _, turn in pairs] == turns
    assert slots.go_on(pairs, [60] * len(pairs)) == sum(30 + number for number in order)
    assert slots.busy == len(order)
    for number, turn in zip(order, turns, strict=True):
        assert slots.turns[turn.slot] is turn
        assert (slots.done[turn.slot], slots.seed[turn.slot]) == (30 + number, 1000 + number)
        assert (slots.tokens[turn.slot, : 39 + number] == turn.request.prompt).all()
    assert sorted(slots.done[slots.busy :].tolist()) == [30 + n for n in range(4) if n not in order]


def test_the_longest_beginning_of_a_relative_is_gone_on_from_and_by_one_turn_alone():
    slots = table()
    long = more(prompt(30), 1)
    for number, tokens in enumerate((prompt(30), long, long)):
        one = relative(tokens, number, "g0")
        slots.seat(one, 60)
        slots.done[one.slot] = tokens.size
    slots.leave(0, 1, 2)
    turns = [relative(more(long, 5 + n), 5 + n, "g0") for n in range(3)]
    found = {turn.request.id: int(slots.done[slot]) for slot, turn in slots.continued(turns)}
    assert sorted(found.values()) == [30, 39, 39]
    assert len({slot for slot, _ in slots.continued(turns)}) == 3


@pytest.mark.parametrize("family", ["", "g1"])
def test_strangers_are_not_gone_on_from(family: str):
    slots = table()
    ended(slots, prompt(30), 0, "g0")
    assert slots.continued([relative(more(prompt(30), 1), 1, family)]) == []


def test_a_relative_that_begins_otherwise_is_not_gone_on_from():
    slots = table()
    ended(slots, prompt(30), 0, "g0")
    other = more(prompt(30), 1)
    other[3] += 1
    assert slots.continued([relative(other, 1, "g0"), relative(prompt(20), 2, "g0")]) == []


@pytest.mark.parametrize("leaving", [(0, 1, 2, 3), (0, 2), (3,), (1, 2, 3), (3, 0)])
def test_many_leave_at_once_and_the_rest_stay_together(leaving: tuple[int, ...]):
    slots = table()
    turns = [seated(slots, prompt(30 + n, n), n) for n in range(4)]
    slots.leave(*(turns[n].slot for n in leaving))
    stay = [n for n in range(4) if n not in leaving]
    assert slots.busy == len(stay)
    assert {turns[n].slot for n in stay} == set(range(len(stay)))
    assert all(turns[n].slot == -1 for n in leaving)
    for n in stay:
        slot = turns[n].slot
        assert slots.turns[slot] is turns[n]
        assert (slots.tokens[slot, : 30 + n] == prompt(30 + n, n)).all()
    assert sorted(slots.done[slots.busy :].tolist()) == sorted(30 + n for n in leaving)


def test_rows_of_the_store_move_with_their_slots():
    """Two pairs at once, as far as they are filled."""
    store = KvStore(4)
    store.keys = [torch.arange(5.0)[:, None, None, None].repeat(1, 2, 128, 3)]
    store.values = [10 + store.keys[0]]
    store.move(np.array([2, 3, 0, 1]), np.array([0, 1, 2, 3]), 40)
    assert store.keys[0][:, 0, 39, 0].tolist() == [2, 3, 0, 1, 4]
    assert store.values[0][:, 1, 0, 2].tolist() == [12, 13, 10, 11, 14]
    assert store.keys[0][:, 0, 40, 0].tolist() == [0, 1, 2, 3, 4], "beyond that nothing moves"


def test_a_small_model_reads_longer_prompts_at_once_than_a_large_one():
    small = Forward(tiny_model(layers=1), KvStore(2), fixed=False)
    assert PREFILL_TOKENS < small.spare(2) <= MOST_PREFILL_TOKENS
    assert Forward(tiny_model(layers=1), KvStore(2), fixed=True).spare(2) < PREFILL_TOKENS
