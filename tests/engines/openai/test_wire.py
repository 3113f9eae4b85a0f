"""The words of the completions API, without a server."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.engines.openai import OpenAISettings
from windrow.engines.openai.wire import Reader, Words, body, fault, mismatch, refuse_unknown, seed_of, seen
from windrow.errors import ConfigError, EngineError, PromptTooLong
from windrow.requests import Request, Sampling
from windrow.types import but

PLAIN = OpenAISettings(base_url="http://x", model="m", context_tokens=100)
VLLM = but(PLAIN, flavour="vllm")
ASKED = Request(id="g0.a0.t0.p0", prompt=np.array([1, 2, 3], np.int32), seed=7)


def event(ids=None, logprobs=None, text="", finish=None) -> bytes:
    choice: dict[str, object] = {"index": 0, "text": text, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    if logprobs is not None:
        choice["logprobs"] = {"token_logprobs": logprobs, "tokens": [], "top_logprobs": None}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def reader(limit: int = 100, *, trains: bool = True, encode=None) -> Reader:
    return Reader("r1", limit, trains=trains, encode=encode)


# what is asked


def test_a_plain_server_is_asked_in_plain_words():
    said = body(ASKED, 10, PLAIN, Words())
    assert said["prompt"] == [1, 2, 3]
    assert (said["max_tokens"], said["stream"], said["return_token_ids"]) == (10, True, True)
    assert not {"top_k", "min_p", "stop_token_ids", "allowed_token_ids", "stream_interval"} & set(said)


def test_a_server_that_knows_fewer_words_is_asked_in_fewer():
    said = body(ASKED, 10, PLAIN, Words(token_ids=False, logprobs=False))
    assert not {"logprobs", "return_token_ids"} & set(said)


def test_a_seed_is_sent_unless_it_would_harm_the_server():
    assert body(ASKED, 10, PLAIN, Words())["seed"] == seed_of(ASKED)
    assert "seed" not in body(ASKED, 10, but(PLAIN, send_seed=False), Words())


def test_vllm_is_told_everything_because_it_would_take_the_rest_from_the_generation_config():
    said = body(ASKED, 10, VLLM, Words())
    assert (said["top_k"], said["min_p"], said["repetition_penalty"]) == (0, 0.0, 1.0)
    assert said["stop_token_ids"] == []
    assert "allowed_token_ids" not in said


def test_the_seed_follows_from_the_turn_and_the_place_in_it():
    later = but(ASKED, sampled=5)
    assert seed_of(ASKED) == seed_of(but(ASKED, id="other"))
    assert seed_of(ASKED) != seed_of(later)
    assert seed_of(ASKED) != seed_of(but(ASKED, seed=8))
    assert 0 <= seed_of(later) < 1 << 31


@pytest.mark.parametrize(
    "wish", [{"top_k": 3}, {"min_p": 0.1}, {"stop_token_ids": (1,)}, {"allowed_token_ids": (1,)}], ids=str
)
def test_what_a_plain_server_cannot_do_is_refused_by_name(wish):
    asked = Sampling(**wish)
    with pytest.raises(ConfigError, match=rf"sampling\.{next(iter(wish))}.*flavour: vllm"):
        refuse_unknown(asked, "openai")
    refuse_unknown(asked, "vllm")


@pytest.mark.parametrize(
    ("wish", "raw", "processed"),
    [
        ({}, True, True),
        ({"temperature": 0.0}, True, True),
        ({"temperature": 0.7}, False, True),
        ({"top_p": 0.9}, True, False),
        ({"top_k": 5}, True, False),
        ({"min_p": 0.1}, True, False),
        ({"allowed_token_ids": (1, 2)}, False, True),
        ({"temperature": 0.7, "top_p": 0.9}, False, False),
        ({"temperature": 0.0, "top_p": 0.9}, True, True),
    ],
    ids=str,
)
def test_log_probs_that_mean_something_else_are_noticed(wish, raw, processed):
    asked = Sampling(**wish)
    assert (mismatch(asked, "raw") == "") is raw
    assert (mismatch(asked, "processed") == "") is processed


# what comes back


def test_events_become_pieces():
    r = reader()
    pieces = [*r.feed(event([4, 5], [-1.0, -2.0]) + event([6], [-0.5], finish="length") + b"data: [DONE]\n\n")]
    assert [piece.token_ids.tolist() for piece in pieces] == [[4, 5], [6]]
    assert pieces[1].logprobs.tolist() == [-0.5]
    assert [piece.finish for piece in pieces] == [None, "length"]
    assert (r.tokens, r.finished) == (3, True)


@given(st.lists(st.integers(1, 40), max_size=60))
def test_it_does_not_matter_where_bytes_are_cut(cuts: list[int]):
    data = b": hello\n\n" + b"".join(event([n], [-1.0], text="ü") for n in range(5)) + event([], [], finish="stop")
    r = reader()
    found = []
    for cut in cuts:
        found += [*r.feed(data[:cut])]
        data = data[cut:]
    found += [*r.feed(data)]
    assert [token for piece in found for token in piece.token_ids.tolist()] == [0, 1, 2, 3, 4]
    assert [piece.finish for piece in found if piece.finish] == ["stop"]


def test_what_follows_the_finish_is_nobodys():
    assert (
        len([*reader().feed(event([1], [-1.0], finish="stop") + event([2], [-1.0]) + b'data: {"choices": []}\n\n')])
        == 1
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"data: {nonsense\n\n", "the server sent '{nonsense'"),
        (b"<html>busy</html>\n", "does not stream events"),
        (b'{"choices": []}\n', "does not stream events"),
        (b'data: {"choices": [{"token_ids": [-1]}]}\n\n', "the server sent"),
        (b'data: {"choices": [{"token_ids": ["a"]}]}\n\n', "the server sent"),
        (b"x" * (1 << 21), "without a line break"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (event([1], [-1.0], finish="content_filter"), "content_filter"),
        (event([1, 2], [-1.0]), "2 tokens and 1 log-probs"),
        (event([1], None), "1 tokens and 0 log-probs"),
        (event(None, None, text="hello"), "text without token ids"),
        (event([1], [None]), "log-prob None"),
        (event([1], [-9999.0]), r"log-prob -9999\.0"),
        (event([1], [3.5]), r"log-prob 3\.5"),
        (b'data: {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [NaN]}}]}\n\n', "the server sent"),
        (event(list(range(40)), [-1.0] * 40), "returned 40 tokens, at most 16 were asked for"),
    ],
    ids=range(16),
)
def test_nonsense_is_an_error_of_the_request(data: bytes, message: str):
    with pytest.raises(EngineError, match=message):
        [*reader(16).feed(data)]


def test_pieces_before_nonsense_still_count():
    pieces = reader().feed(event([1], [-1.0]) + b"data: {nonsense\n\n")
    assert next(pieces).token_ids.tolist() == [1]
    with pytest.raises(EngineError):
        next(pieces)


def test_for_evaluation_text_is_cut_into_tokens_and_has_no_log_probs():
    r = reader(4, trains=False, encode=lambda text: [ord(letter) for letter in text])
    pieces = [*r.feed(event(text="ab") + event(text="cdef", finish="stop"))]
    assert [piece.token_ids.tolist() for piece in pieces] == [[97, 98], [99, 100]]
    assert all(np.isnan(piece.logprobs).all() for piece in pieces)


def test_for_evaluation_token_ids_are_taken_where_they_come():
    pieces = [*reader(trains=False).feed(event([5, 6], None, text="ab", finish="stop"))]
    assert pieces[0].token_ids.tolist() == [5, 6]
    assert np.isnan(pieces[0].logprobs).all()


def test_what_an_answer_has_in_it_is_seen():
    whole = seen("r1", event([5], [-0.5]) + event([], [], finish="length"))
    assert (whole.token_ids, whole.logprobs, whole.first_logprob) == (True, True, -0.5)
    bare = seen("r1", event(text="a", finish="length"))
    assert (bare.token_ids, bare.logprobs, bare.first_logprob) == (False, False, None)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', EngineError, "answered 404: no such model"),
        (b'{"error": {"message": "too long", "code": "context_length_exceeded"}}', PromptTooLong, "too long"),
        (b'{"error": {"message": "This model\'s maximum context length is 8 tokens"}}', PromptTooLong, "8 tokens"),
        (b'{"message": "wrong", "object": "error"}', EngineError, "wrong"),
        (b'{"detail": "not found"}', EngineError, "not found"),
        (b'{"error": "plain words"}', EngineError, "plain words"),
        (b"<html>", EngineError, "'<html>'"),
    ],
    ids=range(7),
)
def test_an_error_is_told_in_the_servers_words(answer: bytes, kind: type[EngineError], message: str):
    error = fault("r1", 404, answer)
    assert type(error) is kind
    assert message in str(error)
