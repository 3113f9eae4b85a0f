"""A model that judges, played by a script on virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from tests.rewards.given import said

from windrow.engines.scripted import ScriptedEngine, ScriptedSettings
from windrow.errors import ConfigError, EngineError, JudgeError, RewardError
from windrow.requests import Chunk, Request, Sampling
from windrow.rewards.judge import Judge
from windrow.rewards.protocol import Reward, Score
from windrow.rewards.sums import WeightedSum
from windrow.rollout.virtual_time import run
from windrow.text import ByteCodec
from windrow.tiny import tiny_model

T = TypeVar("T")
Says = Callable[[str, Request], str]
"""What the model says to a prompt."""

TEMPLATE = "judge {answer}"


class Watched(ScriptedEngine):
    """Remembers what it was asked, and how much of it at once."""

    def __init__(self, says: Says, **settings: Any) -> None:
        codec = ByteCodec()
        self.requests: list[Request] = []
        self.running = self.most = 0
        self.starts = self.closes = 0

        def script(request: Request) -> list[int]:
            prompt = request.prompt[: len(request.prompt) - request.sampled]
            return [*says(codec.decode(prompt), request).encode(), codec.END]

        super().__init__("judge-1", ScriptedSettings(**{"vocabulary": 257} | settings), script=script, codec=codec)

    async def start(self) -> Any:
        self.starts += 1
        return await super().start()

    async def close(self) -> None:
        self.closes += 1
        await super().close()

    async def generate(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.running -= 1


def length_of_answer(prompt: str, _: Request) -> str:
    return f"score: {len(prompt.removeprefix('judge ').strip())}"


def judged(says: Says, body: Callable[[Judge, Watched], Coroutine[Any, Any, T]], **args: Any) -> T:
    settings = {name: args.pop(name) for name in [*args] if name in ScriptedSettings.__struct_fields__}

    async def live() -> T:
        engine = Watched(says, **settings)
        async with Judge(engine, ByteCodec(), **{"template": TEMPLATE} | args) as judge:
            return await body(judge, engine)

    return run(live())


async def all_of(judge: Judge, answers: list[str]) -> list[Score | JudgeError]:
    """The scores of many at once; an error is what came of that one."""

    async def one(place: int) -> None:
        try:
            results[place] = await judge.score(said(answers[place], index=place))
        except JudgeError as error:
            results[place] = error

    results: list[Any] = [None] * len(answers)
    async with asyncio.TaskGroup() as group:
        for place in range(len(answers)):
            group.create_task(one(place))
    return results


def test_a_verdict_becomes_a_score():
    async def body(judge: Judge, engine: Watched) -> Score:
        assert isinstance(judge, Reward)
        return await judge.score(said("four!"))

    assert judged(length_of_answer, body) == Score(0.5, note="score: 5")


def test_the_same_question_is_asked_once():
    async def body(judge: Judge, engine: Watched) -> tuple[int, int, int]:
        for answer in ["a", "bb", "a", "a", "bb"]:
            score = await judge.score(said(answer))
            assert score.value == len(answer) / 10
        return len(engine.requests), judge.asked, judge.remembered

    assert judged(length_of_answer, body) == (2, 2, 3)


def test_the_same_question_at_the_same_time_is_asked_once():
    async def body(judge: Judge, engine: Watched) -> tuple[int, int]:
        scores = await all_of(judge, ["a", "bb"] * 20)
        assert [score.value for score in scores if isinstance(score, Score)] == [0.1, 0.2] * 20
        return len(engine.requests), judge.remembered

    assert judged(length_of_answer, body, token_s=0.1) == (2, 38)


def test_what_was_needed_longest_ago_is_forgotten_first():
    async def body(judge: Judge, engine: Watched) -> int:
        for answer in ["a", "bb", "a", "ccc", "a", "bb"]:  # bb makes room for ccc
            await judge.score(said(answer))
        return judge.asked

    assert judged(length_of_answer, body, cache=2) == 4


def test_without_a_cache_everything_is_asked():
    async def body(judge: Judge, engine: Watched) -> int:
        await all_of(judge, ["a"] * 5)
        return judge.asked

    assert judged(length_of_answer, body, cache=0) == 5


def test_never_more_than_the_limit_are_asked_at_once():
    async def body(judge: Judge, engine: Watched) -> int:
        scores = await all_of(judge, [f"a{place}" for place in range(50)])
        assert all(isinstance(score, Score) for score in scores)
        return engine.most

    assert judged(length_of_answer, body, at_once=3, token_s=0.1) == 3


def test_an_answer_without_a_verdict_is_asked_for_again_with_another_seed():
    def says(_: str, request: Request) -> str:
        return "score: 4" if request.seed == 2 else "well"

    async def body(judge: Judge, engine: Watched) -> list[tuple[int, float]]:
        assert (await judge.score(said("a"))).value == 0.4
        return [(request.seed, request.sampling.temperature) for request in engine.requests]

    assert judged(says, body) == [(0, 0.0), (1, 0.7), (2, 0.7)]


def test_a_judge_that_never_gives_a_verdict_is_an_error_and_no_score():
    async def body(judge: Judge, engine: Watched) -> int:
        with pytest.raises(JudgeError, match=r"judge-1 was asked about g0\.a0: no verdict in 2 answers.*'well'"):
            await judge.score(said("a"))
        return judge.asked

    assert judged(lambda *_: "well", body, retries=1) == 2
    assert issubclass(JudgeError, RewardError)


def test_a_failure_is_not_remembered():
    moods = ["well", "score: 3"]

    async def body(judge: Judge, engine: Watched) -> float:
        with pytest.raises(JudgeError):
            await judge.score(said("a"))
        return (await judge.score(said("a"))).value

    assert judged(lambda *_: moods.pop(0), body, retries=0) == 0.3


def test_a_verdict_that_was_cut_off_is_none():
    async def body(judge: Judge, engine: Watched) -> None:
        with pytest.raises(JudgeError, match="no verdict in 1 answers"):
            await judge.score(said("a"))

    judged(lambda *_: "score: 10", body, retries=0, sampling=Sampling(max_tokens=8))


def test_an_answer_that_is_interrupted_goes_on_where_it_was():
    async def body(judge: Judge, engine: Watched) -> list[int]:
        async with asyncio.TaskGroup() as group:
            scoring = group.create_task(judge.score(said("a")))
            for _ in range(2):
                await asyncio.sleep(0.35)
                await engine.suspend("interrupt")
                await engine.resume()
        assert scoring.result().value == 0.1
        return [request.sampled for request in engine.requests]

    assert judged(length_of_answer, body, token_s=0.1, stream_every=1) == [0, 3, 6]


def test_an_engine_that_refuses_is_a_judges_error():
    async def body(judge: Judge, engine: Watched) -> None:
        engine.refuses["generate"] = EngineError("no room")
        with pytest.raises(JudgeError, match=r"judge judge-1 was asked about g0\.a0: no room"):
            await judge.score(said("a"))
        engine.refuses["generate"] = ValueError("odd")
        with pytest.raises(JudgeError, match="ValueError: odd"):
            await judge.score(said("a"))
        del engine.refuses["generate"]
        assert (await judge.score(said("a"))).value == 0.1

    judged(length_of_answer, body)


def test_an_engine_that_dies_fails_those_that_wait_and_no_score_comes_of_it():
    async def body(judge: Judge, engine: Watched) -> None:
        async with asyncio.TaskGroup() as group:
            scoring = group.create_task(all_of(judge, ["a", "a", "bb"]))
            await asyncio.sleep(0.25)
            engine.die("of age")
        assert all(isinstance(result, JudgeError) for result in scoring.result())
        assert any("died: of age" in str(result) for result in scoring.result())

    judged(length_of_answer, body, token_s=0.1)


def test_an_engine_that_hangs_is_left_at_the_deadline():
    async def body(judge: Judge, engine: Watched) -> float:
        engine.hang()
        began = asyncio.get_running_loop().time()
        with pytest.raises(JudgeError, match="it took too long"):
            await judge.score(said("a"))
        assert engine.running == 0
        return asyncio.get_running_loop().time() - began

    assert judged(length_of_answer, body, timeout_s=30.0) == pytest.approx(30.0)


def test_who_is_cancelled_leaves_the_question_to_the_next():
    async def body(judge: Judge, engine: Watched) -> tuple[float, int]:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(judge.score(said("a")))
            second = group.create_task(judge.score(said("a")))
            await asyncio.sleep(0.25)
            first.cancel()
        assert first.cancelled()
        return second.result().value, len(engine.requests)

    assert judged(length_of_answer, body, token_s=0.1) == (0.1, 2)


def test_nothing_is_kept_of_questions_that_are_over():
    async def body(judge: Judge, engine: Watched) -> None:
        await all_of(judge, ["a", "b", "a"] * 5)
        assert (judge._cache._locks, judge._cache._waiting) == ({}, {})

    judged(length_of_answer, body)


def test_a_prompt_that_does_not_fit_is_an_error():
    async def body(judge: Judge, engine: Watched) -> None:
        with pytest.raises(JudgeError, match="context is 64"):
            await judge.score(said("a" * 100))

    judged(length_of_answer, body, context_tokens=64)


def test_a_parse_of_ones_own_is_used_and_checked():
    async def good(judge: Judge, engine: Watched) -> float:
        return (await judge.score(said("a"))).value

    async def bad(judge: Judge, engine: Watched) -> None:
        with pytest.raises(JudgeError, match=r"parse read 3.0 .* from 0 to 1"):
            await judge.score(said("a"))

    async def raising(judge: Judge, engine: Watched) -> None:
        with pytest.raises(JudgeError, match="ZeroDivisionError"):
            await judge.score(said("a"))

    assert judged(lambda *_: "yes", good, parse=lambda text: float(text == "yes")) == 1.0
    judged(lambda *_: "yes", bad, parse=lambda _: 3.0)
    judged(lambda *_: "yes", raising, parse=lambda _: 1 / 0)


def test_it_starts_its_engine_when_it_is_needed_and_closes_it():
    async def live() -> tuple[int, int]:
        engine = Watched(length_of_answer)
        judge = Judge(engine, ByteCodec(), template=TEMPLATE)
        await all_of(judge, ["a", "b", "c"])
        await judge.close()
        return engine.starts, engine.closes

    assert run(live()) == (1, 1)


def test_who_waits_when_it_is_closed_gets_an_error_and_the_engine_stays_closed():
    async def live() -> tuple[list[Score | JudgeError], int, int]:
        engine = Watched(length_of_answer, token_s=0.1)
        judge = Judge(engine, ByteCodec(), template=TEMPLATE, at_once=1)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(all_of(judge, ["a", "bb", "ccc"]))
            await asyncio.sleep(0.25)  # of virtual time: the first is being answered
            await judge.close()
        results = [*asked.result(), *await all_of(judge, ["later"])]
        return results, engine.starts, engine.closes

    results, starts, closes = run(live())
    assert (starts, closes) == (1, 1)
    assert all(isinstance(result, JudgeError) for result in results)
    assert ["is closed; make another one" in str(result) for result in results[1:]] == [True] * 3


def test_a_judge_that_is_closed_while_its_engine_starts_leaves_it_closed():
    class Slow(Watched):
        async def start(self) -> Any:
            started = await super().start()
            await asyncio.sleep(5)
            return started

    async def live() -> tuple[list[Score | JudgeError], int, int]:
        engine = Slow(length_of_answer)
        judge = Judge(engine, ByteCodec(), template=TEMPLATE)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(all_of(judge, ["a"]))
            await asyncio.sleep(1)
            await judge.close()
        return asked.result(), engine.starts, engine.closes

    (result,), starts, closes = run(live())
    assert (starts, closes) == (1, 2)
    assert "is closed" in str(result)


def test_an_engine_that_does_not_start_is_an_error():
    async def live() -> None:
        engine = Watched(length_of_answer)
        engine.refuses["start"] = EngineError("no driver")
        judge = Judge(engine, ByteCodec(), template=TEMPLATE)
        for ask in (judge.start(), judge.score(said("a"))):
            with pytest.raises(JudgeError, match="could not be started: no driver"):
                await ask

    run(live())


def test_it_is_a_part_of_a_sum_like_any_other():
    async def body(judge: Judge, engine: Watched) -> Any:
        waiting: Any = WeightedSum({"judge": judge}, {"judge": 2.0}).score(said("four"))
        return await waiting

    score = judged(length_of_answer, body)
    assert (score.value, score.parts) == (0.8, {"judge": 0.4})


def test_a_real_model_judges():
    """Its weights are random, so it may say digits and nothing else."""
    from windrow.engines.torch import TorchEngine

    codec = ByteCodec()
    sampling = Sampling(max_tokens=64, allowed_token_ids=(*b"0123456789", codec.END))

    async def live() -> tuple[Score, Score, int]:
        engine = TorchEngine("judge-1", tiny_model(vocab=codec.vocabulary), codec)
        first_digit = lambda text: int(text[0]) / 10 if text else None  # noqa: E731 -- used once
        judge = Judge(engine, codec, template=TEMPLATE, parse=first_digit, sampling=sampling, retries=20)
        async with judge:
            return await judge.score(said("a")), await judge.score(said("a")), judge.remembered

    first, again, remembered = asyncio.run(live())
    assert (first, remembered) == (again, 1)
    assert 0.0 <= first.value < 1.0
    assert first.note.isdigit()


@pytest.mark.parametrize(
    "args", [{"cache": -1}, {"at_once": 0}, {"retries": -1}, {"timeout_s": 0}, {"template": "{answr}"}]
)
def test_settings_that_cannot_work_are_refused(args: dict[str, Any]):
    with pytest.raises(ConfigError):
        Judge(ScriptedEngine("judge-1"), ByteCodec(), **args)
