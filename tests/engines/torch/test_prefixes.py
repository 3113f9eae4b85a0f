"""What has been computed is not computed again, and nobody gets what is not his."""

import asyncio

import numpy as np
import pytest
from tests.engines.kits import run_async
from tests.engines.torch.given import ask, begun, expected, hear, hear_all, prompt, request, started

from windrow.engines.torch import TorchEngine
from windrow.engines.torch.slots import WORTH_COPYING, Slots
from windrow.engines.torch.store import KvStore
from windrow.engines.torch.turns import Turn
from windrow.requests import Chunk
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
