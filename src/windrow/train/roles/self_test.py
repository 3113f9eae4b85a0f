"""Proves the chain from engine to trainer without changing anything.

Promises: after it every weight is what it was before, or it says so, and the actor's optimizer has not moved. What it
finds is said in words, one sentence for each link of the chain.
"""

import torch
from torch import Tensor

from windrow.protocol import DataProto
from windrow.train.correction import mismatch
from windrow.train.roles.actor import Actor, version_of
from windrow.train.roles.base import added
from windrow.train.rows import Rows, column
from windrow.types import Value, but

TOLERANCE = 1e-3
"""Mean difference of log-probabilities between two ways of computing the same in float32."""


class Finding(Value, frozen=True):
    """One link of the chain."""

    holds: bool
    words: str

    def __str__(self) -> str:
        return f"{'ok' if self.holds else 'WRONG'}: {self.words}"


def self_test(actor: Actor, batch: DataProto, tolerance: float = TOLERANCE) -> list[Finding]:
    """A whole update with a learning rate of 0, on a batch from an engine that has the actor's weights."""
    before = {name: each.detach().clone() for name, each in actor.learner.parameters.items()}
    tried = added(batch.select(), advantages=column(batch, "response_mask").float())
    metrics = _idle_update(actor, actor.log_probs(tried))
    return [_weights(actor, before), _ratio(metrics), _engine(tried, tolerance)]


def _idle_update(actor: Actor, batch: DataProto) -> dict[str, float]:
    config, learner = actor.config, actor.learner
    optimizer = but(config.optimizer, lr=0.0)
    loss = but(config.loss, kl=0.0, kind="pg" if config.loss.kind == "topr" else config.loss.kind)  # topr asks engines
    actor.config = but(config, optimizer=optimizer, epochs=1, minibatches=1, old_logprobs="trainer", loss=loss)
    actor.learner = learner.again(optimizer)
    try:
        return actor.train(batch)
    finally:
        actor.config, actor.learner = config, learner


def _weights(actor: Actor, before: dict[str, Tensor]) -> Finding:
    moved = [name for name, each in actor.learner.parameters.items() if not torch.equal(each, before[name])]
    if moved:
        return Finding(holds=False, words=f"a step with lr 0 changed {len(moved)} weights, {moved[0]} among them")
    return Finding(holds=True, words=f"a step with lr 0 left all {len(before)} weights as they were, bit for bit")


def _ratio(metrics: dict[str, float]) -> Finding:
    if not metrics["train/steps"]:
        return Finding(holds=False, words="the batch has no sampled token, so nothing was trained on")
    ratio, apart = metrics["train/ratio"], metrics["train/kl_old"]
    words = f"new and old probabilities of the same weights have a mean ratio of {ratio:.9g} (distance {apart:.3g})"
    if ratio == 1.0 and apart == 0.0:
        return Finding(holds=True, words=words)
    return Finding(holds=False, words=f"{words}; something in the model is random, such as lora.dropout")


def _engine(batch: DataProto, tolerance: float) -> Finding:
    """Whether the engine thinks of its tokens what the trainer thinks of them."""
    rows = Rows.of(batch, ("old_logprobs", "infer_logprobs", "policy_versions"))
    own, engine, versions = (rows.columns[name] for name in ("old_logprobs", "infer_logprobs", "policy_versions"))
    found = mismatch(own, engine, versions, version_of(batch, rows), rows.mask)
    mean, most = found["train/mismatch_mean"], found["train/mismatch_max"]
    words = f"log-probabilities of trainer and engine differ by {mean:.2g} on average, {most:.2g} at most"
    if found["train/stale_share"] == 1.0:
        return Finding(
            holds=False, words="every token was sampled by older weights; use a batch of the current version"
        )
    if mean <= tolerance:
        return Finding(holds=True, words=words)
    return Finding(holds=False, words=f"{words}; compare their weights, dtype and temperature")
