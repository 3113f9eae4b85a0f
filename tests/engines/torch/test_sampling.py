"""Draws: which tokens may come, how likely, and that nothing but seed and place decides."""

import numpy as np
import pytest
import torch

from windrow.engines.torch.sampling import Rules, draw, kept, uniforms

VOCABULARY = 50


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (rows, VOCABULARY))).float()


def reference(shares: np.ndarray, top_k: int, top_p: float, min_p: float) -> set[int]:
    """What may be drawn, one row, step by step."""
    order = sorted(range(len(shares)), key=lambda token: (-shares[token], token))
    if top_k:
        order = order[:top_k]
    total = sum(shares[token] for token in order)
    likely, mass = [], 0.0
    for token in order:
        if mass >= top_p * total and top_p < 1:
            break
        likely.append(token)
        mass += shares[token]
    return {token for token in likely if shares[token] >= min_p * shares[order[0]]}


@pytest.mark.parametrize("top_k", [0, 1, 3, 20, 50, 99])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
def test_filters_keep_what_they_should(top_k: int, top_p: float, min_p: float):
    shares = torch.softmax(logits(6), dim=1)
    rules = [torch.full((6,), value, dtype=kind) for value, kind in ((top_k, torch.long), (top_p, torch.double))]
    found = kept(shares, rules[0], rules[1], torch.full((6,), min_p, dtype=torch.double))
    for row in range(6):
        wanted = reference(shares[row].double().numpy(), top_k, top_p, min_p)
        assert set(found[row].nonzero()[:, 0].tolist()) == wanted


def test_rows_have_rules_of_their_own():
    shares = torch.softmax(logits(3), dim=1)
    found = kept(shares, torch.tensor([2, 0, 0]), torch.tensor([1.0, 1.0, 0.3]).double(), torch.zeros(3).double())
    assert found.sum(1).tolist() == [2, VOCABULARY, len(reference(shares[2].double().numpy(), 0, 0.3, 0.0))]


def rules(rows: int, **changes: torch.Tensor) -> Rules:
    made = Rules()
    made.uniform = torch.from_numpy(uniforms(np.arange(rows, dtype=np.uint64), np.zeros(rows, np.int64)))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_draws_follow_the_probabilities():
    rows = 20_000
    row = logits(1)
    drawn = draw(row.expand(rows, -1), rules(rows))
    counted = np.bincount(drawn.tokens.numpy(), minlength=VOCABULARY) / rows
    shares = torch.softmax(row, dim=1)[0].numpy()
    assert np.abs(counted - shares).max() < 4 * np.sqrt(0.25 / rows)


def test_a_draw_is_the_first_token_whose_cumulated_share_exceeds_the_number():
    row = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).log()
    for number, token in ((0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (1 - 2.0**-52, 3)):
        drawn = draw(row, rules(1, uniform=torch.tensor([number], dtype=torch.float64)))
        assert drawn.tokens.tolist() == [token]


def test_temperature_divides_and_counts_in_the_log_probability():
    said = logits(4)
    drawn = draw(said, rules(4, temperature=torch.full((4,), 0.5)))
    wanted = torch.log_softmax(said / 0.5, dim=1).gather(1, drawn.tokens[:, None])[:, 0]
    assert torch.allclose(drawn.logprobs, wanted)


def test_greedy_rows_take_the_likeliest_and_leave_the_others_alone():
    said = logits(4)
    plain = draw(said, rules(4))
    drawn = draw(said, rules(4, greedy=torch.tensor([True, False, True, False])))
    assert drawn.tokens[[0, 2]].tolist() == said.argmax(1)[[0, 2]].tolist()
    assert drawn.tokens[[1, 3]].tolist() == plain.tokens[[1, 3]].tolist()
    assert torch.allclose(drawn.logprobs[0], torch.log_softmax(said, dim=1)[0].max())


def test_allowed_tokens_share_all_the_probability():
    said = logits(30)
    allowed = torch.zeros(30, VOCABULARY, dtype=torch.bool)
    allowed[:, [3, 7]] = True
    drawn = draw(said, rules(30, allowed=allowed))
    assert set(drawn.tokens.tolist()) == {3, 7}
    wanted = torch.log_softmax(said[:, [3, 7]], dim=1)
    both = torch.where(drawn.tokens == 3, wanted[:, 0], wanted[:, 1])
    assert torch.allclose(drawn.logprobs, both, atol=1e-6)


def test_what_is_cut_off_does_not_count_in_the_log_probability():
    said = logits(30)
    cut = {"top_k": torch.full((30,), 2), "top_p": torch.ones(30).double(), "min_p": torch.zeros(30).double()}
    drawn = draw(said, rules(30, **cut))
    two = said.topk(2, dim=1).indices
    assert bool((drawn.tokens[:, None] == two).any(1).all())
    assert torch.allclose(drawn.logprobs, torch.log_softmax(said, dim=1).gather(1, drawn.tokens[:, None])[:, 0])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_row_without_numbers_has_no_log_probability_and_spoils_no_other(wrong: float):
    said = logits(3)
    whole = draw(said, rules(3))
    said[1, 5] = wrong
    drawn = draw(said, rules(3))
    assert drawn.logprobs.isfinite().tolist() == [True, False, True]
    assert drawn.tokens[[0, 2]].tolist() == whole.tokens[[0, 2]].tolist()


def test_the_numbers_are_a_function_of_seed_and_place():
    seeds = np.array([1, 2, 2**64 - 1], dtype=np.uint64)
    many = uniforms(seeds, np.arange(1000)[:, None])
    assert many.shape == (1000, 3)
    assert many[17, 1] == uniforms(seeds[1:2], np.array([17])).item()
    assert ((many >= 0) & (many < 1)).all()
    assert len(np.unique(many)) == many.size
    assert np.abs(many.mean(0) - 0.5).max() < 0.05


def test_neighbouring_seeds_and_places_are_not_alike():
    """A seed and the next place must not give what the next seed and this place give."""
    table = uniforms(np.arange(64, dtype=np.uint64), np.arange(64)[:, None])
    assert len(np.unique(table)) == table.size
    assert np.abs(np.asarray(np.corrcoef(table))[np.triu_indices(64, 1)]).max() < 0.6
