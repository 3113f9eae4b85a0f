"""The actor and the reference, and the test that proves the chain."""

import math

import pytest
import torch
from tests.train import kit
from torch import Tensor

from windrow.errors import ConfigError, DataError
from windrow.train import losses
from windrow.train.config import CorrectionConfig, LossConfig, MicroConfig, TrainConfig
from windrow.train.learner import Alone
from windrow.train.networks import Policy
from windrow.train.roles import Actor, Reference, self_test
from windrow.train.rows import column
from windrow.types import but

PLAIN = LossConfig(correction=CorrectionConfig(mismatch_cap=None))


def test_what_went_well_becomes_likelier_and_what_went_badly_less_likely():
    actor = Actor(kit.config(3e-3, loss=PLAIN), kit.model())
    before = actor.score(kit.batch()).logprobs.sum(1)
    for _ in range(3):
        actor.train(kit.with_advantages(kit.batch()))
    moved = actor.score(kit.batch()).logprobs.sum(1) - before
    assert (moved > 0).tolist() == [False, True, False, True]


def test_log_probabilities_are_added_to_the_batch_and_replaced_when_asked_again():
    actor, batch = Actor(kit.config(0.1), kit.model()), kit.with_advantages(kit.batch())
    first = column(actor.log_probs(batch), "old_logprobs")
    torch.testing.assert_close(first, kit.plain_logprobs(actor.model, batch).detach())
    actor.train(batch)
    assert not torch.equal(column(actor.log_probs(batch), "old_logprobs"), first)


def test_the_temperature_of_the_batch_counts():
    actor, batch = Actor(kit.config(), kit.model()), kit.batch(temperature=0.5)
    torch.testing.assert_close(actor.score(batch).logprobs, kit.plain_logprobs(actor.model, batch, 0.5).detach())


def test_a_batch_that_was_sampled_greedily_is_never_trained_on():
    actor = Actor(kit.config(), kit.model())
    with pytest.raises(DataError, match=r"sampled at temperature 0.0 has no probabilities to train on"):
        actor.train(kit.with_advantages(kit.batch(temperature=0.0)))


@pytest.mark.parametrize(
    ("old", "minibatches", "forwards"),
    [
        ("trainer", 1, 1),  # ratios compare with the step itself
        ("engine", 1, 1),  # and with what the engine said
        ("engine", 2, 2),
        ("trainer", 2, 3),  # two steps, and once beforehand
    ],
)
def test_no_forward_is_made_that_is_not_needed(old, minibatches, forwards):
    actor = Actor(kit.config(old_logprobs=old, minibatches=minibatches), kit.model())
    seen: list[int] = []
    actor.learner.network.register_forward_hook(lambda *_: seen.append(1))
    actor.train(kit.with_advantages(kit.batch()))
    assert len(seen) == forwards


def test_ratios_are_exactly_1_if_a_step_compares_with_itself():
    metrics = Actor(kit.config(), kit.model()).train(kit.with_advantages(kit.batch()))
    assert (metrics["train/ratio"], metrics["train/kl_old"], metrics["train/clip_share"]) == (1.0, 0.0, 0.0)


def test_ratios_compare_with_the_engine_if_they_are_to():
    batch = kit.with_advantages(kit.batch())
    actor = Actor(kit.config(old_logprobs="engine"), kit.model())
    mask = column(batch, "response_mask")
    ratio = (kit.plain_logprobs(actor.model, batch) - column(batch, "infer_logprobs")).exp()[mask].mean()
    metrics = actor.train(batch)
    assert metrics["train/ratio"] == pytest.approx(ratio.item(), rel=1e-5)
    assert metrics["train/correction_mean"] == 1.0


@pytest.mark.parametrize("old", ["trainer", "engine"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_trainer_and_engine_are_compared_before_anything_is_learnt(old, minibatches):
    batch = kit.with_advantages(kit.batch())
    actor = Actor(kit.config(1.0, old_logprobs=old, minibatches=minibatches, epochs=2), kit.model())
    engine = torch.where(column(batch, "response_mask"), kit.plain_logprobs(actor.model, batch) - 0.25, 0.0).detach()
    column(batch, "infer_logprobs").copy_(engine)
    metrics = actor.train(batch)
    assert metrics["train/mismatch_mean"] == pytest.approx(0.25, rel=1e-4)
    assert metrics["train/mismatch_max"] == pytest.approx(0.25, rel=1e-4)


def test_trainer_and_engine_are_compared_where_nothing_is_learnt_as_well():
    batch = kit.with_advantages(kit.batch(), torch.zeros(4, 1))
    actor = Actor(kit.config(), kit.model())
    engine = torch.where(column(batch, "response_mask"), kit.plain_logprobs(actor.model, batch) - 0.25, 0.0).detach()
    column(batch, "infer_logprobs").copy_(engine)
    metrics = actor.train(batch)
    assert (actor.steps, metrics["train/steps"]) == (0, 0.0)
    assert metrics["train/mismatch_mean"] == pytest.approx(0.25, rel=1e-4)


def test_topr_compares_with_whoever_sampled_and_needs_no_other_correction():
    """A good row weighs 1 although the engine thought otherwise; a bad one what is left of its probability."""
    batch = kit.with_advantages(kit.batch())
    actor = Actor(kit.config(loss=LossConfig(kind="topr")), kit.model())
    mask = column(batch, "response_mask")
    now = kit.plain_logprobs(actor.model, batch)
    column(batch, "infer_logprobs").copy_(torch.where(mask, now + 0.1, 0.0).detach())
    taper = (-0.1 * mask.sum(1, keepdim=True)).exp()
    weight = torch.where(column(batch, "advantages") >= 0, 1.0, taper)
    loss = (-weight * column(batch, "advantages") * now)[mask].mean()
    metrics = actor.train(batch)
    assert metrics["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["train/taper_share"] > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": LossConfig(kind="topr"), "old_logprobs": "trainer"}, "old_logprobs trainer goes against loss topr"),
        (
            {"old_logprobs": "engine", "loss": LossConfig(correction=CorrectionConfig(drop_above=2.0))},
            r"loss.correction changes nothing .*old_logprobs is engine",
        ),
        (
            {"loss": LossConfig(kind="topr", correction=CorrectionConfig(stale_cap=2.0))},
            r"loss.correction changes nothing .*loss topr has a weight of its own",
        ),
    ],
)
def test_numbers_to_compare_with_that_contradict_the_loss_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**settings)


def test_one_step_is_the_gradient_of_the_loss_over_the_whole_batch():
    """Against the loss written out over all rows at once, with correction, distance and entropy in it."""
    loss = LossConfig(kl=0.3, entropy=0.01, aggregation="sequence_mean", correction=CorrectionConfig(mismatch_cap=1.5))
    actor = Actor(kit.config(loss=loss, micro=MicroConfig(tokens=9)), kit.model())
    batch = Reference(actor.config, kit.model(seed=1)).log_probs(kit.with_advantages(kit.batch()))
    plain = kit.model()
    logprobs = kit.plain_logprobs(plain, batch)
    mask, engine = column(batch, "response_mask"), column(batch, "infer_logprobs")
    weight = (logprobs - engine).detach().exp().clamp(max=1.5)
    apart = column(batch, "ref_logprobs") - logprobs
    entropy = _entropies(plain, batch.batch["input_ids"])  # type: ignore[index]
    policy = -weight * column(batch, "advantages") * (logprobs - logprobs.detach()).exp()
    per_token = policy + 0.3 * (apart.exp() - 1 - apart) - 0.01 * entropy
    total = (torch.where(mask, per_token, 0.0).sum(1) / mask.sum(1)).mean()
    total.backward()
    wanted = {f"model.{name}": each.grad for name, each in plain.named_parameters() if each.grad is not None}
    found: dict[str, Tensor] = {}
    actor.learner.optimizer.register_step_pre_hook(
        lambda *_: found.update({name: each.grad.clone() for name, each in actor.learner.parameters.items()})  # type: ignore[union-attr]
    )
    metrics = actor.train(batch)
    clipped = min(1.0, 1.0 / metrics["train/grad_norm"])
    assert metrics["train/loss"] == pytest.approx(total.item(), rel=1e-4)
    kit.assert_alike(found, {name: each * clipped for name, each in wanted.items()}, share=1e-4)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_rows_that_cannot_move_the_policy_are_not_read_and_change_nothing(aggregation):
    loss = but(PLAIN, aggregation=aggregation, constant=5.0)
    advantages = torch.tensor([1.0, 0.0, -1.0, 0.0])[:, None]
    seen: list[int] = []
    lazy = Actor(kit.config(loss=loss), kit.model())
    lazy.learner.network.register_forward_hook(lambda _, args, __: seen.append(len(args[0].input_ids)))
    told = lazy.train(kit.with_advantages(kit.batch(), advantages))
    assert seen == [2]
    twice = Actor(kit.config(loss=loss, minibatches=2), kit.model())
    twice.learner.network.register_forward_hook(lambda _, args, __: seen.append(len(args[0].input_ids)))
    twice.train(kit.with_advantages(kit.batch(), advantages))
    assert seen == [2, 2, 1, 1], "what ratios compare with is not asked about them either"
    eager = Actor(kit.config(loss=but(loss, entropy=1e-30)), kit.model())
    same = eager.train(kit.with_advantages(kit.batch(), advantages))
    assert told["train/grad_norm"] == pytest.approx(same["train/grad_norm"], rel=1e-4)
    for name, each in eager.learner.parameters.items():
        torch.testing.assert_close(lazy.learner.parameters[name], each, msg=name, atol=2e-5, rtol=0)


def test_a_batch_from_which_nothing_can_be_learnt_changes_nothing():
    actor = Actor(kit.config(loss=PLAIN), kit.model())
    before = kit.weights(actor.learner)
    metrics = actor.train(kit.with_advantages(kit.batch(), torch.zeros(4, 1)))
    assert metrics["train/steps"] == 0.0
    assert "train/loss" not in metrics
    assert all(torch.equal(each, before[name]) for name, each in actor.learner.parameters.items())


def test_a_batch_is_used_as_often_as_configured_in_steps_that_keep_groups_whole():
    actor = Actor(kit.config(epochs=3, minibatches=2), kit.model())
    batch = kit.with_advantages(kit.batch([(2, 3)] * 8))
    sizes: list[int] = []
    actor.learner.network.register_forward_hook(lambda _, args, __: sizes.append(len(args[0].input_ids)))
    assert actor.train(batch)["train/steps"] == 6.0
    assert actor.steps == 6
    assert sizes == [8, *[4] * 6]


def test_chance_decides_anew_in_every_update_which_groups_are_together():
    actor = Actor(kit.config(minibatches=2), kit.model())
    batch = kit.with_advantages(kit.batch([(2, 3)] * 12))
    together = set()
    for _ in range(6):
        read: list[Tensor] = []
        hook = actor.learner.network.register_forward_hook(
            lambda _, args, __, read=read: read.append(args[0].input_ids)
        )
        actor.train(batch)
        hook.remove()
        together.add(str(sorted(read[1].sum(1).tolist())))  # the first is what ratios compare with
    assert len(together) > 2


def test_training_that_goes_on_from_a_state_goes_on_bit_for_bit():
    settings = kit.config(epochs=2, minibatches=2)
    batches = [kit.with_advantages(kit.batch([(2, 5), (4, 3), (3, 3), (5, 1)] * 2, seed=seed)) for seed in range(4)]
    whole, first, second = (Actor(settings, kit.model(seed=seed)) for seed in (0, 0, 7))
    told = [whole.train(batch) for batch in batches]
    for batch in batches[:2]:
        first.train(batch)
    second.load_state_dict(first.state_dict())
    again = [second.train(batch) for batch in batches[2:]]
    assert [step["train/loss"] for step in again] == [step["train/loss"] for step in told[2:]]
    for name, each in whole.learner.parameters.items():
        assert torch.equal(second.learner.parameters[name], each), name


def test_a_batch_without_what_the_loss_needs_is_refused_in_words():
    with pytest.raises(DataError, match="the batch has no column advantages; it has "):
        Actor(kit.config(), kit.model()).train(kit.batch())
    with pytest.raises(DataError, match=r"loss.kl is 0.1 and the batch has no ref_logprobs; ask a Reference first"):
        Actor(kit.config(loss=LossConfig(kl=0.1)), kit.model()).train(kit.with_advantages(kit.batch()))
    batch = kit.with_advantages(kit.batch())
    batch.pop(batch_keys=["infer_logprobs"])
    with pytest.raises(DataError, match="old_logprobs is engine and the batch has no infer_logprobs"):
        Actor(kit.config(old_logprobs="engine"), kit.model()).train(batch)


def test_a_batch_from_nowhere_is_trained_on_without_correction():
    batch = kit.with_advantages(kit.batch())
    batch.pop(batch_keys=["infer_logprobs", "policy_versions"])
    metrics = Actor(kit.config(), kit.model()).train(batch)
    assert metrics["train/steps"] == 1.0
    assert "train/mismatch_mean" not in metrics


def test_stale_tokens_are_known_by_their_versions():
    batch = kit.with_advantages(kit.batch())
    batch.meta_info["version"] = 3
    column(batch, "policy_versions")[2:] = torch.where(column(batch, "response_mask")[2:], 3, -1).int()
    metrics = Actor(kit.config(), kit.model()).train(batch)
    assert metrics["train/stale_share"] == pytest.approx(6 / 17)  # 4 and 2 of 4 + 2 + 7 + 4 tokens
    assert metrics["train/lag_mean"] == pytest.approx(3 * 6 / 17)


def test_a_reference_stays_as_it_was():
    actor = Actor(kit.config(0.1), kit.model())
    reference = Reference(actor.config, actor)
    batch = kit.with_advantages(kit.batch())
    before = actor.score(batch).logprobs
    actor.train(batch)
    assert torch.equal(column(reference.log_probs(batch), "ref_logprobs"), before)
    assert not torch.equal(actor.score(batch).logprobs, before)


def test_a_reference_can_be_what_it_was_in_an_earlier_run():
    batch = kit.batch()
    first, second = (Reference(kit.config(), kit.model(seed=seed)) for seed in (0, 1))
    second.load_state_dict(first.state_dict())
    assert torch.equal(
        column(second.log_probs(kit.batch()), "ref_logprobs"), column(first.log_probs(batch), "ref_logprobs")
    )


def test_packing_is_refused_when_a_role_is_made_not_when_it_trains():
    config = kit.config(micro=MicroConfig(packing=True))
    assert isinstance(Actor(config, kit.model()).learner.network, Policy)
    deaf = kit.model()
    deaf.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "position_ids": None}), with_kwargs=True
    )
    with pytest.raises(ConfigError, match="Qwen2Model does not keep packed rows apart"):
        Actor(config, deaf)


def test_the_whole_chain_holds_with_an_engine_that_has_the_same_weights():
    actor, batch = Actor(kit.config(), kit.model()), kit.batch()
    column(batch, "infer_logprobs").copy_(kit.plain_logprobs(actor.model, batch).detach())
    before = actor.state_dict()
    findings = self_test(actor, batch)
    assert [finding.holds for finding in findings] == [True, True, True], list(map(str, findings))
    assert actor.steps == before["steps"] == 0
    assert actor.config == kit.config()
    assert "advantages" not in batch.batch.keys()  # type: ignore[union-attr]  # noqa: SIM118


def test_the_chain_does_not_hold_with_an_engine_that_has_other_weights():
    actor, batch = Actor(kit.config(), kit.model()), kit.batch()
    column(batch, "infer_logprobs").copy_(kit.plain_logprobs(kit.model(seed=1), batch).detach())
    weights, ratio, engine = self_test(actor, batch)
    assert (weights.holds, ratio.holds, engine.holds) == (True, True, False)
    assert str(engine).startswith("WRONG: log-probabilities of trainer and engine differ by ")


def test_the_chain_does_not_hold_with_a_model_that_is_random():
    actor, batch = Actor(kit.config(), kit.model()), kit.batch()
    actor.model.get_input_embeddings().register_forward_hook(
        lambda module, _, found: found * (1.01 if module.training else 1.0)
    )
    assert [finding.holds for finding in self_test(actor, batch)][1] is False


class Last(Alone):
    """The last of three processes, which gets no row if there are only two."""

    rank = 2
    size = 3


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo", "topr", "pg"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_a_process_without_rows_takes_part_with_a_gradient_of_zeros(kind, aggregation):
    """Whoever shares weights with others must go through all layers as often as they do."""
    loss = LossConfig(kind=kind, aggregation=aggregation, constant=4.0, kl=0.1, entropy=0.1)
    actor = Actor(kit.config(loss=loss), kit.model(), peers=Last())
    batch = Reference(actor.config, kit.model(seed=1)).log_probs(kit.with_advantages(kit.batch([(2, 3), (3, 2)])))
    lengths: list[float] = []
    actor.learner.optimizer.register_step_pre_hook(
        lambda *_: lengths.extend(float(each.grad.abs().max()) for each in actor.learner.parameters.values())  # type: ignore[union-attr]
    )
    metrics = actor.train(batch)
    assert (metrics["train/steps"], metrics["train/loss"]) == (1.0, 0.0)
    assert lengths == [0.0] * len(actor.learner.parameters)


def test_the_default_settings_can_be_trained_with():
    metrics = Actor(TrainConfig(), kit.model()).train(kit.with_advantages(kit.batch()))
    assert all(map(math.isfinite, metrics.values()))


def _entropies(model, ids: Tensor) -> Tensor:
    """(B, L) of the distribution that each token came from."""
    spread = losses.entropy(model(input_ids=ids, use_cache=False).logits)
    return torch.cat([torch.zeros(len(ids), 1), spread[:, :-1]], 1)
