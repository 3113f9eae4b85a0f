"""The policy that learns.

Promises: a batch is used `epochs` times in `minibatches` steps each; groups stay whole within a mini-batch, and which
group is in which follows from the seed and the number of steps taken before. Ratios compare with the engine's numbers
or with the trainer's own before the update; with one step per batch the trainer's own are those of that step, so that
no second forward is made and ratios are exactly 1. Compared with the engine there is no correction beside the ratio.
How far trainer and engine lie apart is always looked at before the first step changes anything.

Rows that cannot move the policy, because their advantages are 0 and nothing else is asked of them, are not read. The
loss is the same as if they had been; what is told beside it is about the tokens that were. If there is no other row, a
few of them are read all the same, only to see how far trainer and engine lie apart.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.train import correction, losses
from windrow.train.config import LossConfig, ModelConfig, TrainConfig
from windrow.train.learner import ALONE, Learner, Peers, gather
from windrow.train.micro import Ints
from windrow.train.networks import Policy, Said
from windrow.train.roles.base import Dtype, added, dtype_of, mean_over_steps, model_of, parts_of, prepared
from windrow.train.rows import Piece, Rows, temperature
from windrow.train.threads import use_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENGINE = ("infer_logprobs", "policy_versions")
"""Columns that say what the engine thought of its tokens."""
LOOKED_AT = 4
"""Rows that are read to compare trainer and engine where nothing is learnt: enough to see what is wrong."""


class Actor:
    """A policy with its optimizer."""

    def __init__(
        self,
        config: TrainConfig,
        model: "ModelConfig | PreTrainedModel",
        *,
        seed: int = 0,
        dtype: Dtype | None = None,
        threads: int | None = None,
        peers: Peers = ALONE,
    ) -> None:
        self.config = config
        self.model = model_of(model, seed)
        policy = prepared(Policy(self.model, dtype=dtype_of(model, dtype)), config.micro, peers)
        self.learner = Learner(policy, config.optimizer, config.micro, peers=peers)
        self._seed = seed
        self._threads = threads

    @property
    def steps(self) -> int:
        """Optimizer steps that were taken."""
        return self.learner.steps

    @property
    def has_adapters(self) -> bool:
        return type(self.model).__module__.startswith("peft.")

    def without_adapters(self) -> AbstractContextManager[None]:
        """Inside, the policy is what it was before its adapters learnt anything."""
        if not self.has_adapters:
            return nullcontext()
        return cast("AbstractContextManager[None]", self.model.disable_adapter())  # type: ignore[operator]  # peft's

    def score(self, batch: DataProto) -> Said:
        """Log-probabilities and entropy (B, L) of sampled tokens, as the policy is now."""
        use_threads(self._threads)
        return self.learner.forward(Rows.of(batch, device=self.learner.device), temperature(batch))

    def log_probs(self, batch: DataProto) -> DataProto:
        """The batch with `old_logprobs`: what the policy thinks of its tokens now."""
        return added(batch, old_logprobs=self.score(batch).logprobs)

    def train(self, batch: DataProto) -> dict[str, float]:
        """Learn from a batch that has `advantages`; what happened, as means over its steps."""
        use_threads(self._threads)
        rows = self._rows(batch)
        parts = parts_of(batch, rows, self.config.minibatches, self.config.epochs, (self._seed, self.steps))
        update = Update(self, rows, temperature(batch), version_of(batch, rows))
        update.compare_with(self._old(rows, update.temperature, steps=len(parts)))
        for part in parts:
            update.step(part)
        update.look_anyway()
        return update.metrics()

    def state_dict(self) -> dict[str, Any]:  # tensors and numbers
        """All that the next update depends on."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:  # as `state_dict` made it
        self.learner.load_state_dict(state)

    def _rows(self, batch: DataProto) -> Rows:
        there = set() if batch.batch is None else set(batch.batch.keys())
        names = ["advantages", *(name for name in (*ENGINE, "old_logprobs", "ref_logprobs") if name in there)]
        if self.config.loss.kl > 0 and "ref_logprobs" not in there:
            raise DataError(
                f"loss.kl is {self.config.loss.kl} and the batch has no ref_logprobs; ask a Reference first"
            )
        return Rows.of(batch, names, device=self.learner.device)

    def _old(self, rows: Rows, warmth: float, steps: int) -> Tensor | None:
        """What ratios compare with; None: each step with itself."""
        if self.config.compares_with == "engine":
            if "infer_logprobs" not in rows.columns:
                why = "loss is topr" if self.config.old_logprobs is None else "old_logprobs is engine"
                raise DataError(
                    f"{why} and the batch has no infer_logprobs; compare with the trainer, or choose loss pg"
                )
            return rows.columns["infer_logprobs"]
        if "old_logprobs" in rows.columns:
            return rows.columns["old_logprobs"]
        return None if steps == 1 else self.learner.forward(moving(rows, self.config.loss), warmth).logprobs


class Update:
    """What one batch does to a policy."""

    def __init__(self, actor: Actor, rows: Rows, warmth: float, version: int) -> None:
        self.temperature = warmth
        self._learner = actor.learner
        self._config = actor.config
        self._rows = rows
        self._version = version
        self._seen: list[dict[str, float]] = []  # what each step said
        self._apart: dict[str, float] = {}  # trainer and engine before the first step
        self._sums: dict[str, Tensor] = {}  # of diagnostics over the tokens of a step
        self._now = torch.zeros(0)  # log-probabilities of the step's tokens, before it

    def compare_with(self, old: Tensor | None) -> None:
        """Set what ratios compare with; None: each step with itself."""
        if old is not None:
            self._rows = self._rows.but(old=old)
            if self._has_engine:
                self._rows = self._rows.but(correction=self._corrected(old, self._rows).weights)

    def step(self, part: Ints) -> None:
        """One optimizer step on some rows."""
        loss = self._config.loss
        rows = self._rows.take(part)
        rows = rows.but(weights=losses.token_weights(rows.mask, loss.aggregation, loss.constant))
        rows = moving(rows, loss)
        self._sums = {}
        self._now = torch.zeros(rows.mask.shape, device=rows.mask.device)
        said = self._learner.step(rows, self._loss)
        if not said:
            return
        self._look_at_engine(rows)
        names, tokens = sorted(self._sums), rows.tokens()
        totals = self._learner.peers.total(torch.stack([self._sums[name] for name in names]))
        means = {f"train/{name}": float(total) / tokens for name, total in zip(names, totals, strict=True)}
        self._seen.append({**said, **means})

    def look_anyway(self) -> None:
        """Compare trainer and engine on a few rows, those with most current tokens, if no step has done it."""
        if self._apart or not self._has_engine or not self._rows.tokens():
            return
        current = (self._rows.mask & (self._rows.columns["policy_versions"] >= self._version)).sum(1)
        rows = self._rows.take(np.sort(np.argsort(-current.cpu().numpy(), kind="stable")[:LOOKED_AT]))
        now = self._learner.forward(rows, self.temperature).logprobs
        engine, versions = (rows.columns[name] for name in ENGINE)
        self._apart = correction.mismatch(now, engine, versions, self._version, rows.mask)

    def metrics(self) -> dict[str, float]:
        """What all steps said, and how far the engine was from the trainer."""
        return {**self._apart, **mean_over_steps(self._seen)}

    @property
    def _has_engine(self) -> bool:
        return all(name in self._rows.columns for name in ENGINE)

    def _loss(self, piece: Piece) -> Tensor:
        counts = self._config.loss.entropy != 0
        said = self._learner.network(piece.asked, self.temperature, entropy_counts=counts)
        gather(self._now, piece, said.logprobs)
        logprobs = piece.spread(said.logprobs)
        columns = piece.columns
        old = columns.get("old", logprobs.detach())
        weights = columns.get("correction")
        if weights is None and self._has_engine:
            weights = self._corrected(old, piece).weights
        sampled = losses.Sampled(
            logprobs,
            old,
            columns["advantages"],
            piece.mask,
            weights,
            columns.get("ref_logprobs"),
            piece.spread(said.entropy),
        )
        per_token, diagnostics = losses.policy_loss(self._config.loss, sampled)
        for name, numbers in diagnostics.items():
            here = (numbers * piece.mask).sum()
            self._sums[name] = self._sums[name] + here if name in self._sums else here
        return (per_token * columns["weights"]).sum()

    def _corrected(self, old: Tensor, rows: Rows | Piece) -> correction.Correction:
        engine, versions = (rows.columns[name] for name in ENGINE)
        return correction.weights(old, engine, versions, self._version, rows.mask, self._config.loss.correction)

    def _look_at_engine(self, rows: Rows) -> None:
        """How far trainer and engine are apart, by the first step's numbers."""
        if self._apart or not self._has_engine:
            return
        now = self._learner.peers.total(self._now)
        found = self._corrected(rows.columns.get("old", now), rows).metrics
        engine, versions = (rows.columns[name] for name in ENGINE)
        self._apart = found | correction.mismatch(now, engine, versions, self._version, rows.mask)


def moving(rows: Rows, loss: LossConfig) -> Rows:
    """The same rows, with nothing asked about those that cannot move the policy."""
    if loss.kl > 0 or loss.entropy != 0:
        return rows
    return rows.without((rows.columns["advantages"] * rows.mask == 0).all(1))


def version_of(batch: DataProto, rows: Rows) -> int:
    """Which is being trained; the newest that sampled a token, if nobody says so."""
    known = batch.meta_info.get("version")
    if known is not None:
        return int(known)
    versions = rows.columns.get("policy_versions")
    return 0 if versions is None or not versions.numel() else int(versions.max())
