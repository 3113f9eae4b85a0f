"""What an episode leaves behind: who wrote which token, why it ended, and when history was rewritten."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.rollout.kit import Rig, now, played
from tests.rollout.toys import Answering, Echo, Rewriting, always, talk

from windrow.envs.protocol import Rewritten, Step
from windrow.requests import Sampling
from windrow.text import ByteCodec, Message
from windrow.trajectory import Chain, Segment, Trajectory

END = ByteCodec.END


async def one(**given: Any) -> Trajectory:
    """One trajectory."""
    usual: dict[str, Any] = {"tasks": 1, "group_size": 1, "keep": True, "config": {"rollout_batch_size": 1}}
    rig = Rig(**usual | given)
    await rig.full(0, 1)
    (kept,) = rig.kept.values()
    return kept


def text(chain: Chain, begin: int, end: int) -> str:
    return ByteCodec().decode(chain.token_ids[begin:end])


@played
async def test_a_chain_is_what_was_shown_and_said_in_turns():
    kept = await one(env=partial(Echo, turns=2), script=lambda _: [*b"hello", END])
    (chain,) = kept.chains
    assert [(part.author, part.length) for part in chain.segments] == [
        ("prompt", 7),
        ("policy", 6),
        ("environment", 7),
        ("policy", 6),
    ]
    assert text(chain, 0, 26) == "task 0\nhelloturn 1\nhello"
    assert [(turn.begin, turn.end, turn.finish) for turn in kept.turns] == [(7, 13, "stop"), (20, 26, "stop")]
    assert chain.logprobs[:7].tolist() == [0.0] * 7
    assert (chain.logprobs[7:13] < 0).all()


@played
async def test_a_response_that_was_cut_off_is_closed_by_the_environments_message():
    kept = await one(env=partial(Echo, turns=2), script=lambda _: [97] * 100, sampling=Sampling(max_tokens=4))
    (chain,) = kept.chains
    assert [(part.author, part.length) for part in chain.segments] == [
        ("prompt", 7),
        ("policy", 4),
        ("environment", 8),
        ("policy", 4),
    ]
    assert chain.token_ids[11] == END
    assert [turn.finish for turn in kept.turns] == ["length", "length"]


@played
async def test_segments_carry_their_version():
    kept = await one(env=partial(Echo, turns=2), script=lambda _: [*b"hi", END])
    versions = [part.version for part in kept.chains[0].segments]
    assert versions == [-1, 0, -1, 0]
    assert kept.oldest_version == 0


# why it is over


@pytest.mark.parametrize(
    ("ending", "given"),
    [
        ("terminated", {"env": partial(Echo, turns=2)}),
        ("truncated", {"env": partial(Answering, answer=Step(truncated=True))}),
        ("terminated", {"env": partial(Answering, answer=Step(truncated=True, terminated=True))}),
        ("max_turns", {"env": partial(Echo, turns=9), "max_turns": 3}),
        ("terminated", {"env": partial(Echo, turns=3), "max_turns": 3}),
        ("context", {"env": partial(Echo, turns=99), "engine": {"context_tokens": 100}}),
        ("max_tokens", {"env": partial(Echo, turns=99), "config": {"sequence_length": 100, "rollout_batch_size": 1}}),
    ],
)
@played
async def test_why_it_is_over_is_stated(ending: str, given: dict[str, Any]):
    kept = await one(**given)
    assert kept.ending == ending
    assert kept.is_truncated == (ending != "terminated")
    assert len(kept.chains[0].token_ids) <= max(100, len(kept.turns) * 100)


@pytest.mark.parametrize("limit", [{"engine": {"context_tokens": 50}}, {"config": {"sequence_length": 50}}])
@played
async def test_a_limit_is_never_exceeded_by_what_is_sampled(limit: dict[str, Any]):
    rig = Rig(env=partial(Echo, turns=99), script=lambda _: [97] * 99, keep=True, **limit)
    batch = await rig.full(0)
    for kept in rig.kept.values():
        assert kept.turns[-1].end <= 50
        assert kept.turns[-1].finish == "length"
    assert batch.batch["response_mask"].sum(1).min() > 0
    assert set(batch.non_tensor_batch["truncated"]) == {True}


@played
async def test_the_last_word_of_the_environment_is_kept():
    kept = await one(env=partial(Answering, answer=Step(terminated=True, reward=2.5, info={"won": True})))
    assert kept.info == {"won": True}
    assert kept.score == 2.5


# history that was rewritten


@played
async def test_rewritten_history_begins_a_new_chain():
    kept = await one(env=partial(Rewriting, at=1, turns=3), script=lambda _: [*b"ok", END])
    assert [text(chain, 0, 99) for chain in kept.chains] == ["task 0\nokturn 1\nok", "anew\nok"]
    assert [turn.chain for turn in kept.turns] == [0, 0, 1]
    assert [part.author for part in kept.chains[1].segments] == ["prompt", "policy"]
    assert kept.score == sum(turn.reward for turn in kept.turns) == 6


@played
async def test_every_rewriting_begins_another():
    class Forgetful(Echo):
        async def step(self, action: str) -> Any:
            step = await super().step(action)
            shown = Rewritten((Message("system", f"only turn {self.turn}"),))
            return Step(observation=shown, reward=step.reward, terminated=step.terminated)

    kept = await one(env=partial(Forgetful, turns=4))
    assert len(kept.chains) == len(kept.turns) == 4
    assert [turn.chain for turn in kept.turns] == [0, 1, 2, 3]


@played
async def test_a_first_observation_that_rewrites_is_just_the_first():
    class Early(Echo):
        async def start(self, task: Any) -> Any:
            await super().start(task)
            return Rewritten((Message("system", "be brief"), Message("user", "go")))

    kept = await one(env=Early)
    assert len(kept.chains) == 1
    assert text(kept.chains[0], 0, 12) == "be brief\ngo\n"


@played
async def test_after_a_rewriting_there_is_room_again():
    wordy = Step(observation=Rewritten((Message("user", "short"),)))
    kept = await one(
        env=partial(Answering, answer=wordy, at=0, when=always, turns=2),
        script=lambda _: [97] * 40,
        engine={"context_tokens": 50},
    )
    assert kept.ending == "terminated"
    assert len(kept.chains) == 2


# timings and places


@played
async def test_times_and_places_are_written_down():
    kept = await one(env=partial(Echo, turns=2, start_s=3.0, step_s=2.0), script=lambda _: [97] * 9 + [END])
    assert [turn.generate_s for turn in kept.turns] == pytest.approx([1.0, 1.0])
    assert [turn.env_s for turn in kept.turns] == pytest.approx([2.0, 2.0])
    assert [turn.requests for turn in kept.turns] == [1, 1]
    assert [kept.began_at, kept.ended_at] == pytest.approx([0.0, 9.0])
    assert (kept.engines, kept.worker) == (("infer-0",), "train-worker-0")
    assert now() == pytest.approx(9.0)


@played
async def test_a_sampled_token_that_says_nothing_is_kept_as_it_is():
    """Tokens are facts: what does not decode to the same text is not tokenised again."""
    kept = await one(env=partial(Echo, turns=2), script=lambda _: [0xFF, 0xC3, END])
    assert kept.chains[0].token_ids[7:10].tolist() == [0xFF, 0xC3, END]


@played
async def test_an_empty_answer_is_an_answer():
    kept = await one(env=partial(Echo, turns=2), script=lambda _: [END])
    assert [turn.end - turn.begin for turn in kept.turns] == [1, 1]
    assert kept.score == 0


@played
async def test_stop_text_and_stop_tokens_end_a_turn():
    sampling = Sampling(max_tokens=50, stop=("</a>",), stop_token_ids=(33,))
    rig = Rig(script=lambda request: [*b"go</a>more", END] if request.seed % 2 else [*b"go!more", END], keep=True)
    await rig.scheduler.shutdown()
    rig = Rig(sampling=sampling, keep=True, script=lambda r: [*b"go</a>more"] if r.seed % 2 else [*b"go!more"])
    await rig.full(0)
    said = {ByteCodec().decode(kept.chains[0].token_ids[7:]) for kept in rig.kept.values()}
    assert said == {"go</a>", "go!"}


@played
async def test_an_interrupted_turn_counts_its_requests_and_names_its_engines():
    rig = Rig(engines=2, script=talk(40, 40), tasks=1, group_size=1, keep=True, config={"rollout_batch_size": 1})
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.full(0, 1))
        await asyncio.sleep(1.05)
        await rig.scheduler.suspend()
        await rig.scheduler.resume()
        await asyncio.sleep(1.05)
        await rig.scheduler.shrink_sampler([0])
    (kept,) = rig.kept.values()
    assert kept.turns[0].requests == 3
    assert kept.engines == ("infer-0", "infer-1")
    assert kept.chains[0].segments == (Segment("prompt", 7), Segment("policy", 41, 0))
