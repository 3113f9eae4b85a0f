"""The same numbers as TRL's trainers: advantages, losses and gradients on one tiny model.

Responses have the environment's tokens among them, rows differ in length, the policy has moved away from the old one
and from the reference. TRL's trainers are made for real; what they are fed is prepared here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from windrow.tiny import tiny_model, tiny_tokenizer
from windrow.train import estimators, losses
from windrow.train.config import KlKind, LossConfig, Spread
from windrow.train.losses import Sampled

trl = pytest.importorskip("trl")

WIDTH = 6
ROWS = 8
SCORES = [0.0, 100.0, 400.0, 400.0, 100.0, 0.0, 100.0, 500.0]
"""Far apart, because TRL adds 1e-4 to every deviation."""
GROUPS = torch.tensor([0] * 4 + [1] * 4)


def score(completions: list[str], **_: Any) -> list[float]:
    return SCORES[: len(completions)]


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Any]:
    from datasets import Dataset  # type: ignore[import-untyped]

    def made(kind: str = "GRPO", **settings: Any) -> Any:
        shared = {
            "output_dir": str(tmp_path), "per_device_train_batch_size": ROWS, "num_generations": 4, "use_cpu": True,
            "max_completion_length": WIDTH, "report_to": "none", "bf16": False, "gradient_checkpointing": False,
        }  # fmt: skip
        later = {name: settings.pop(name) for name in ("beta", "use_vllm") if name in settings}
        config = getattr(trl, f"{kind}Config")(**shared, beta=0.0, **settings)
        trainer = getattr(trl, f"{kind}Trainer")(
            model=tiny_model(hidden=16, heads=2, scale=4.0),
            reward_funcs=score,
            args=config,
            processing_class=tiny_tokenizer(),
            train_dataset=Dataset.from_list([{"prompt": "ab"}, {"prompt": "cde"}]),
        )
        for name, value in later.items():  # they would load a reference, or start a server, that is not needed here
            setattr(trainer, name, value)
        trainer.model.eval()
        return trainer

    return made


PROMPTS = [{"prompt": "ab"}] * 4 + [{"prompt": "cde"}] * 4


@pytest.mark.parametrize("spread", ["group", "batch", "none"])
def test_advantages_of_grpo(trainer: Callable[..., Any], spread: Spread):
    theirs = trainer(scale_rewards=spread)._generate_and_score_completions(PROMPTS)["advantages"]
    assert torch.allclose(estimators.grpo(torch.tensor(SCORES), GROUPS, spread), theirs, rtol=1e-5)


def test_advantages_of_rloo(trainer: Callable[..., Any]):
    theirs = trainer("RLOO")._generate_and_score_completions(PROMPTS)["advantages"]
    assert torch.allclose(estimators.rloo(torch.tensor(SCORES), GROUPS), theirs, rtol=1e-5)


class Case:
    """One mini-batch, as TRL wants it and as we do."""

    def __init__(self, model: Any) -> None:
        draw = torch.Generator().manual_seed(3)
        self.prompts = torch.randint(1, 200, (ROWS, 3), generator=draw)
        self.responses = torch.randint(1, 200, (ROWS, WIDTH), generator=draw)
        self.real = torch.arange(WIDTH) < torch.tensor([6, 3, 5, 6, 2, 4, 6, 1])[:, None]
        self.own = torch.ones(ROWS, WIDTH, dtype=torch.bool)
        self.own[:, 1::3] = False  # what the environment said
        self.mask = self.real & self.own
        self.advantages = torch.randn(ROWS, generator=draw)
        with torch.no_grad():
            now, _ = self.forward(model)
        self.old = now + torch.randn(now.shape, generator=draw) / 3
        self.ref = now + torch.randn(now.shape, generator=draw) / 3
        self.correction = torch.rand(now.shape, generator=draw)

    def forward(self, model: Any) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the responses, from all logits."""
        ids = torch.cat([self.prompts, self.responses], dim=1)
        seen = torch.cat([torch.ones_like(self.prompts), self.real.long()], dim=1)
        logits = model(input_ids=ids, attention_mask=seen).logits[:, 2:-1].float()
        return logits.log_softmax(-1).gather(2, self.responses[..., None])[..., 0], losses.entropy(logits)

    def theirs(self) -> dict[str, Tensor]:
        return {
            "prompt_ids": self.prompts,
            "prompt_mask": torch.ones_like(self.prompts),
            "completion_ids": self.responses,
            "completion_mask": self.real.long(),
            "tool_mask": self.own.long(),
            "advantages": self.advantages,
            "old_per_token_logps": self.old,
            "ref_per_token_logps": self.ref,
            "importance_sampling_ratio": self.correction,
            "num_items_in_batch": self.mask.sum(),
        }

    def ours(self, model: Any, config: LossConfig, *, corrected: bool) -> Tensor:
        now, entropy = self.forward(model)
        sampled = Sampled(
            now, self.old, self.advantages[:, None].expand(now.shape), self.mask,
            self.correction if corrected else None, self.ref, entropy,
        )  # fmt: skip
        weights = losses.token_weights(self.mask, config.aggregation, config.constant)
        return (losses.policy_loss(config, sampled).per_token * weights).sum()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"loss_type": "grpo"}, {"aggregation": "sequence_mean"}),
        ({"loss_type": "dapo"}, {"aggregation": "token_mean"}),
        ({"loss_type": "bnpo"}, {"aggregation": "token_mean"}),
        ({"loss_type": "dr_grpo"}, {"aggregation": "constant", "constant": WIDTH}),
        ({"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.4}, {"clip_low": 0.1, "clip_high": 0.4}),
        ({"loss_type": "dapo", "delta": 1.3}, {"dual_clip": 1.3}),
        ({"loss_type": "dapo", "beta": 0.5, "use_bias_correction_kl": False}, {"kl": 0.5, "kl_kind": "k3"}),
        ({"loss_type": "dapo", "entropy_coef": 0.5}, {"entropy": 0.5}),
        ({"loss_type": "dapo", "use_vllm": True}, {}),
        (
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05},
            {"kind": "gspo", "aggregation": "sequence_mean", "clip_low": 0.05, "clip_high": 0.05},
        ),
        ({"loss_type": "cispo", "epsilon_high": 1.2}, {"kind": "cispo", "clip_low": 1.0, "clip_high": 0.2}),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_losses_and_gradients(trainer: Callable[..., Any], theirs: dict[str, Any], ours: dict[str, Any]):
    reference = trainer(**theirs)
    model = reference.model
    case = Case(model)
    expected = reference._compute_loss(model, case.theirs())
    made = case.ours(model, LossConfig(**ours), corrected="use_vllm" in theirs)
    assert made.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert_same_gradient(made, expected, model)


def assert_same_gradient(made: Tensor, expected: Tensor, model: Any) -> None:
    weights = list(model.parameters())
    found, wanted = (
        torch.cat([each.flatten() for each in torch.autograd.grad(loss, weights)]) for loss in (made, expected)
    )
    largest = float(wanted.abs().max())
    assert largest > 1e-3
    assert torch.allclose(found, wanted, rtol=1e-3, atol=largest * 1e-4)


@pytest.mark.parametrize("kind", ["k1", "k2"])
def test_the_unbiased_gradient_of_kl(trainer: Callable[..., Any], kind: KlKind):
    """On the old policy TRL's corrected distance has this gradient too, whatever its value is."""
    reference = trainer(loss_type="dapo", beta=0.5, use_bias_correction_kl=True)
    model = reference.model
    case = Case(model)
    with torch.no_grad():
        case.old, _ = case.forward(model)
    made = case.ours(model, LossConfig(kl=0.5, kl_kind=kind), corrected=False)
    assert_same_gradient(made, reference._compute_loss(model, case.theirs()), model)


def test_the_cases_reach_every_bound(trainer: Callable[..., Any]):
    """A comparison in which nothing is clipped would compare nothing."""
    model = trainer().model
    case = Case(model)
    with torch.no_grad():
        now, _ = case.forward(model)
    spread = case.advantages[:, None].expand(now.shape)
    tight = losses.gspo(now, case.old, spread, case.mask, clip_low=0.05, clip_high=0.05)
    for made, name in (
        (losses.ppo(now, case.old, spread, clip_low=0.2, clip_high=0.2, dual_clip=1.3), "clip_share"),
        (losses.ppo(now, case.old, spread, clip_low=0.2, clip_high=0.2, dual_clip=1.3), "dual_clip_share"),
        (losses.cispo(now, case.old, spread, clip_low=1.0, clip_high=0.2), "clip_share"),
        (tight, "clip_share"),
    ):
        share = float(made.diagnostics[name][case.mask].mean())
        assert 0.05 < share < 0.95, name
