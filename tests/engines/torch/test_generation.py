"""Answers: how they end, what they depend on, what goes wrong with one of them alone."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.kits import Endless, run_async
from tests.engines.torch.given import (
    CONTEXT,
    Heard,
    ask,
    begun,
    expected,
    hear,
    hear_all,
    logprobs_of,
    prompt,
    request,
    started,
)

from windrow.errors import EngineError, PromptTooLong
from windrow.requests import Tokens
from windrow.text import ByteCodec
from windrow.types import but


@run_async
async def test_multi_turn_answers_with_interruptions_are_those_of_the_model():
    """Four turns, each interrupted by others; log-probabilities of every token against one plain forward."""
    async with started(capacity=4) as engine:
        history = prompt(20)
        for turn in range(4):
            heard = Heard(request(turn, prompt=history, max_tokens=30, seed=turn))
            parts = [heard]
            async with asyncio.TaskGroup() as group:
                group.create_task(hear(engine, heard.asked, heard))
                company = ask(group, engine, request(50 + turn, size=40, max_tokens=60))
                await begun(heard)
                await engine.suspend("interrupt")
            await engine.resume()
            if heard.finish == "interrupted":
                parts.append(await hear(engine, heard.rest(f"t{turn}.p1")))
            for part in (*parts, company):
                assert np.allclose(part.logprobs, expected(engine.model, part), atol=1e-4)
            sampled = [token for part in parts for token in part.tokens]
            assert len(sampled) == 30
            history = np.concatenate([history, np.array(sampled, np.int32), prompt(7, turn)])


@run_async
async def test_an_interrupted_answer_goes_on_with_the_same_numbers():
    """Without determinism the tokens may differ where two are as likely; what they are worth may not."""
    async with started() as engine:
        whole = await hear(engine, request(1, max_tokens=60))
        heard = Heard(request(2, max_tokens=60, prompt=whole.asked.prompt, seed=whole.asked.seed))
        async with asyncio.TaskGroup() as group:
            group.create_task(hear(engine, heard.asked, heard))
            await begun(heard)
            await engine.interrupt([heard.asked.id])
        rest = await hear(engine, heard.rest("r3"))
        assert heard.tokens + rest.tokens == whole.tokens
        assert np.allclose(heard.logprobs + rest.logprobs, whole.logprobs, atol=1e-4)


@run_async
async def test_the_seed_decides():
    async with started() as engine:
        many = await hear_all(engine, [request(n, prompt=prompt(9), seed=seed) for n, seed in enumerate((5, 5, 6, -1))])
    assert many[0].tokens == many[1].tokens != many[2].tokens
    assert len(many[3].tokens) == 20


@run_async
async def test_rules_of_sampling_hold_for_each_request_by_itself():
    wishes: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top_k": 3},
        {"top_p": 0.4, "temperature": 1.5},
        {"min_p": 0.3},
        {"allowed_token_ids": (65, 66, 67)},
        {},
        {"temperature": 0.7},
    ]
    async with started() as engine:
        many = await hear_all(engine, [request(n, max_tokens=15, **wish) for n, wish in enumerate(wishes)])
        said = [logprobs_of(engine.model, [*heard.asked.prompt, *heard.tokens])[9:-1] for heard in many]
    likeliest = [shares.argsort(dim=1, descending=True) for shares in said]
    assert many[0].tokens == likeliest[0][:, 0].tolist()
    assert all(token in best[:3] for token, best in zip(many[1].tokens, likeliest[1].tolist(), strict=True))
    for token, row in zip(many[2].tokens, torch.softmax(said[2] / 1.5, dim=1), strict=True):
        assert row[row > row[token] + 1e-5].sum() < 0.4 + 1e-4
    for token, row in zip(many[3].tokens, said[3].exp(), strict=True):
        assert row[token] >= 0.3 * row.max() - 1e-5
    assert set(many[4].tokens) <= {65, 66, 67}
    allowed = torch.log_softmax(said[4][:, 65:68], dim=1)
    wanted = allowed[torch.arange(15), torch.tensor(many[4].tokens) - 65]
    assert np.allclose(many[4].logprobs, wanted.numpy(), atol=1e-4)
    cooler = torch.log_softmax(said[6] / 0.7, dim=1)[torch.arange(15), torch.tensor(many[6].tokens)]
    assert np.allclose(many[6].logprobs, cooler.numpy(), atol=1e-4)
    assert np.allclose(many[5].logprobs, expected(engine.model, many[5]), atol=1e-4)


@run_async
async def test_chunks_come_every_few_tokens_and_at_the_end():
    async with started(stream_every=4) as engine:
        heard = await hear(engine, request(max_tokens=10))
    assert [len(chunk.token_ids) for chunk in heard.chunks] == [4, 4, 2]
    assert [chunk.finish for chunk in heard.chunks] == [None, None, "length"]


@run_async
async def test_stop_tokens_are_the_codecs_and_the_requests():
    async with started(codec=ByteCodec()) as engine:
        plain = await hear(engine, request(0, temperature=0.0, max_tokens=30))
        stop = plain.tokens[4]
        heard = await hear(engine, request(1, prompt=plain.asked.prompt, temperature=0.0, stop_token_ids=(999, stop)))
        ended = await hear(engine, request(2, allowed_token_ids=(ByteCodec.END,)))
    assert heard.tokens == plain.tokens[: plain.tokens.index(stop) + 1]
    assert heard.finish == "stop"
    assert (ended.tokens, ended.finish) == ([ByteCodec.END], "stop")


@run_async
async def test_a_stop_at_the_last_token_is_a_stop():
    async with started() as engine:
        heard = await hear(engine, request(max_tokens=1, allowed_token_ids=(70,), stop_token_ids=(70,)))
    assert (heard.tokens, heard.finish) == ([70], "stop")


class OneLetter(Endless):
    """Every token is the same letter, but those of an even number."""

    def decode(self, tokens: Tokens) -> str:
        return "".join("x" if token % 2 else "-" for token in tokens.tolist())


@run_async
async def test_a_stop_text_is_found_across_chunks_and_continuations():
    """The text may have begun in an earlier part of the turn, but not before the turn."""
    before = np.array([3, 3, 3, 3, 2, 3, 3], np.int32)  # ends in two x
    asked: dict[str, Any] = {"allowed_token_ids": (1,), "stop": ("xxxx",)}
    async with started(codec=OneLetter(), stream_every=1) as engine:
        fresh = await hear(engine, request(0, prompt=before, sampled=0, **asked))
        rest = await hear(engine, request(1, prompt=before, sampled=2, **asked))
        whole = await hear(engine, request(2, prompt=before, sampled=3, **asked))
    assert [(len(heard.tokens), heard.finish) for heard in (fresh, rest, whole)] == [
        (4, "stop"),
        (2, "stop"),
        (2, "stop"),
    ]


@run_async
async def test_a_stop_text_of_several_tokens_ends_an_answer():
    text = "ab"
    async with started(codec=ByteCodec(), context=512) as engine:
        many = await hear_all(
            engine, [request(n, max_tokens=400, allowed_token_ids=(97, 98, 99), stop=(text, "ccc")) for n in range(6)]
        )
    for heard in many:
        said = bytes(heard.tokens).decode()
        assert heard.finish == "stop"
        assert said.endswith((text, "ccc"))
        assert text not in said[:-1]
        assert "ccc" not in said[:-1]


class Broken(Endless):
    """Cannot read the token 80."""

    def decode(self, tokens: Tokens) -> str:
        if 80 in tokens:
            raise ValueError("what is an 80?")
        return super().decode(tokens)


@run_async
async def test_a_codec_that_fails_fails_one_request():
    async with started(codec=Broken()) as engine, asyncio.TaskGroup() as group:
        other = ask(group, engine, request(1, max_tokens=30))
        with pytest.raises(EngineError, match="request r0 stop texts: ValueError: what is an 80"):
            await hear(engine, request(0, allowed_token_ids=(80,), stop=("a",)))
    assert len(other.tokens) == 30


@run_async
async def test_the_context_ends_an_answer():
    async with started() as engine:
        heard = await hear(engine, request(size=CONTEXT - 5, max_tokens=50))
        assert (len(heard.tokens), heard.finish) == (5, "length")
        assert np.allclose(heard.logprobs, expected(engine.model, heard), atol=1e-4)
        one = await hear(engine, request(1, size=CONTEXT - 1))
        assert (len(one.tokens), one.finish) == (1, "length")


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"size": CONTEXT}, PromptTooLong, f"request r0 has a prompt of {CONTEXT} tokens and the context is {CONTEXT}"),
        ({"prompt": np.array([1, 259], np.int32)}, EngineError, "request r0 prompt has token 259; .* 0 to 258"),
        ({"prompt": np.array([-1], np.int32)}, EngineError, "token -1"),
        ({"prompt": np.array([], np.int32)}, EngineError, "at least one token"),
        ({"allowed_token_ids": (5, 300)}, EngineError, "allowed_token_ids has token 300"),
        ({"sampled": 11}, EngineError, "11 sampled tokens in a prompt of 10"),
    ],
)
@run_async
async def test_what_cannot_be_served_is_refused_and_harms_nobody(
    changes: dict[str, Any], kind: type[EngineError], words: str
):
    async with started() as engine, asyncio.TaskGroup() as group:
        other = ask(group, engine, request(1))
        with pytest.raises(kind, match=words):
            await hear(engine, request(**changes))
    assert len(other.tokens) == 20


@run_async
async def test_stop_texts_need_a_codec():
    async with started(codec=None) as engine:
        with pytest.raises(EngineError, match="stop texts and the engine no codec"):
            await hear(engine, request(stop=("a",)))


@run_async
async def test_an_id_is_used_by_one_request_at_a_time():
    async with started() as engine, asyncio.TaskGroup() as group:
        heard = ask(group, engine, request(max_tokens=100))
        await begun(heard)
        with pytest.raises(EngineError, match="request r0 already"):
            await hear(engine, request())


@run_async
async def test_a_turn_without_room_ends_at_once():
    async with started() as engine:
        heard = await hear(engine, request(max_tokens=4, sampled=4))
        assert (heard.tokens, heard.finish) == ([], "length")
        assert engine.counters().steps == 0


def poisoned(engine_model: torch.nn.Module, token: int) -> None:
    """Whoever feeds this token gets no numbers any more."""
    with torch.no_grad():
        engine_model.get_input_embeddings().weight[token] = float("nan")  # type: ignore[operator]


@pytest.mark.parametrize("deterministic", [False, True])
@run_async
async def test_logits_that_are_no_numbers_fail_one_request_alone(deterministic: bool):
    """And its slot serves the next one well."""
    async with started(capacity=3, deterministic=deterministic) as engine:
        poisoned(engine.model, 251)
        bad = request(0, prompt=np.array([5, 251, 7], np.int32))
        async with asyncio.TaskGroup() as group:
            others = [ask(group, engine, request(n, max_tokens=30, allowed_token_ids=(1, 2, 3))) for n in (1, 2)]
            with pytest.raises(EngineError, match="request r0 token 0: logits are not finite under version 0"):
                await hear(engine, bad)
            again = await hear(engine, request(3, size=2, max_tokens=30, allowed_token_ids=(1, 2, 3)))
        assert [len(heard.tokens) for heard in (*others, again)] == [30, 30, 30]
        assert np.isfinite(again.logprobs).all()


@run_async
async def test_what_was_sampled_before_a_failure_is_handed_over():
    async with started(stream_every=100) as engine:
        poisoned(engine.model, 9)
        heard = Heard(request(max_tokens=50, allowed_token_ids=(8, 9)))
        with pytest.raises(EngineError, match="not finite"):
            await hear(engine, heard.asked, heard)
    assert heard.tokens[-1] == 9
    assert set(heard.tokens[:-1]) <= {8}
    assert [chunk.finish for chunk in heard.chunks] == [None]


@run_async
async def test_no_more_run_at_once_than_fit_and_the_others_follow_in_order():
    ended: list[str] = []
    async with started(capacity=2) as engine:

        async def listen(number: int) -> None:
            await hear(engine, request(number, max_tokens=6))
            ended.append(f"r{number}")

        async with asyncio.TaskGroup() as group:
            for number in range(9):
                group.create_task(listen(number))
    assert ended == [f"r{number}" for number in range(9)]


@run_async
async def test_the_load_is_what_runs_and_what_waits():
    async with started(capacity=2) as engine:
        await engine.suspend("freeze")
        async with asyncio.TaskGroup() as group:
            many = [ask(group, engine, request(n, max_tokens=100 + n)) for n in range(5)]
            await asyncio.sleep(0)
            report = await engine.load_report()
            assert (report.running, report.waiting, report.tokens_outstanding) == (0, 5, 510)
            await engine.resume()
            await begun(*many[:2])
            await engine.suspend("freeze")
            report = await engine.load_report()
            assert (report.running, report.waiting) == (2, 3)
            assert report.tokens_outstanding == 510 - sum(len(heard.tokens) for heard in many)
            await engine.release()
        report = await engine.load_report()
        assert (report.running, report.waiting, report.tokens_outstanding) == (0, 0, 0)


@run_async
async def test_whatever_is_asked_for_in_the_past_is_forgotten():
    """A slot carries nothing from one request to the next: rules, stops, texts."""
    async with started(capacity=1) as engine:
        plain = await hear(engine, request(1))
        await hear(engine, request(2, allowed_token_ids=(70, 71), stop_token_ids=(71, 72, 73), stop=("F",), top_k=2))
        again = await hear(engine, but(plain.asked, id="r3"))
    assert again.tokens == plain.tokens
