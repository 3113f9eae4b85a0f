"""A network that learns: its gradients, its optimizer, its schedule, and where it stands.

Promises: a step is the same however its rows are cut into micro-batches or shared between processes, up to rounding,
because a loss is a sum over tokens whose weights were fixed for all rows together. A gradient that is not finite
changes nothing and is counted; several in a row are a `TrainError`. `state_dict` holds all that the next step depends
on: training that goes on from it goes on bit for bit. Nothing global is changed.

What it does not do: it knows no losses; whoever asks for a step brings one.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from windrow.errors import ConfigError, TrainError
from windrow.nearest import did_you_mean
from windrow.train.config import MicroConfig, OptimizerConfig
from windrow.train.networks import Policy, Said, Values
from windrow.train.rows import Piece, Rows, pieces
from windrow.train.schedules import learning_rate

MOST_SKIPPED = 3
"""Gradients in a row that may be no numbers; one can be an accident, more are a broken policy."""

Loss = Callable[[Piece], Tensor]
"""The part of a loss that one micro-batch has: a sum, never a mean."""


class Peers(Protocol):
    """The processes that share the work, as one of them sees them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def adopt(self, network: nn.Module) -> None:
        """Spread the weights of a network over all processes; called once, before it has a learner."""

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of the whole gradient, wherever its parts are."""

    def last(self, network: nn.Module, *, is_last: bool) -> None:
        """Before each backward pass: gradients need not be exchanged before the last one of a step."""

    def whole(self, tensor: Tensor) -> Tensor:
        """A copy of a parameter or of a moment, all of it."""

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """What this process keeps of it, laid out like its own."""


class Alone:
    """One process that has everything."""

    rank = 0
    size = 1

    def adopt(self, network: nn.Module) -> None:
        """It stays as it is."""

    def total(self, numbers: Tensor) -> Tensor:
        return numbers

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return get_total_norm(gradients)

    def last(self, network: nn.Module, *, is_last: bool) -> None:
        """Nobody to exchange anything with."""

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole.to(like.device)


ALONE = Alone()


class Learner:
    """One network and its optimizer."""

    def __init__(
        self, network: nn.Module, optimizer: OptimizerConfig, micro: MicroConfig, *, peers: Peers = ALONE
    ) -> None:
        self.network = network
        self.config = optimizer
        self.micro = micro
        self.peers = peers
        self.steps = 0  # optimizer steps that were taken
        self.skipped = 0  # gradients that were no numbers, since the beginning
        self._bad_in_a_row = 0
        self.parameters = {name: each for name, each in network.named_parameters() if each.requires_grad}
        if not self.parameters:
            raise ConfigError(f"{type(network).__name__} has no weights that may be trained")
        self.optimizer = _adamw(self.parameters.values(), optimizer)

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def again(self, optimizer: OptimizerConfig) -> "Learner":
        """Another learner of the same network, with an optimizer and a count of its own."""
        return Learner(self.network, optimizer, self.micro, peers=self.peers)

    def pieces(self, rows: Rows) -> Iterator[Piece]:
        """The micro-batches that are this process's own."""
        return _pieces(self.network, rows, self.micro, self.peers)

    def forward(self, rows: Rows, temperature: float = 1.0) -> Said:
        """Log-probabilities and entropy (B, L) of all tokens that are asked about; nothing is learnt."""
        return score(self.network, rows, self.micro, temperature, self.peers)

    def step(self, rows: Rows, loss: Loss) -> dict[str, float]:
        """One optimizer step on these rows; without a token to learn from, none."""
        began = time.perf_counter()
        tokens, total = self._accumulate(rows, loss)
        if not tokens:
            return {}
        norm = self._update()
        reported = self.peers.total(torch.tensor([total, float(tokens)], dtype=torch.float64, device=self.device))
        seconds = time.perf_counter() - began
        return {
            "train/loss": float(reported[0]),
            "train/grad_norm": norm,
            "train/lr": self.optimizer.param_groups[0]["lr"],
            "train/tokens": float(reported[1]),
            "train/seconds": seconds,
            "train/tokens_per_s": float(reported[1]) / seconds,
            "train/skipped_steps": float(self.skipped),
        }

    def state_dict(self) -> dict[str, Any]:  # tensors and numbers, as torch.save takes them
        """Everything that the next step depends on; trained weights only, others are where they came from."""
        moments = {name: self._moments(each) for name, each in self.parameters.items()}
        return {
            "weights": {name: self.peers.whole(each) for name, each in self.parameters.items()},
            "moments": {name: found for name, found in moments.items() if found},
            "steps": self.steps,
            "skipped": self.skipped,
            "bad_in_a_row": self._bad_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:  # as `state_dict` made it
        """Go on from there; raises TrainError and changes nothing if it belongs to another network."""
        self._check(state)
        with torch.no_grad():
            for name, each in self.parameters.items():
                each.copy_(self.peers.part(state["weights"][name], each))
        self.optimizer.state.clear()
        for name, moments in state["moments"].items():
            each = self.parameters[name]
            self.optimizer.state[each] = {
                key: value.clone() if value.ndim == 0 else self.peers.part(value, each).clone()
                for key, value in moments.items()
            }
        self.steps, self.skipped = int(state["steps"]), int(state["skipped"])
        self._bad_in_a_row = int(state["bad_in_a_row"])

    def _accumulate(self, rows: Rows, loss: Loss) -> tuple[int, float]:
        """Gradients of all micro-batches; the tokens that were read, and the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        mine = list(self.pieces(rows))
        tokens, total = 0, torch.zeros((), dtype=torch.float64, device=self.device)
        self.network.train()
        try:
            for number, piece in enumerate(mine, 1):
                self.peers.last(self.network, is_last=number == len(mine))
                value = loss(piece)
                value.backward()  # type: ignore[no-untyped-call]  # torch's
                total += value.detach()
                tokens += piece.tokens
        finally:
            self.network.eval()
        return tokens, float(total)

    def _update(self) -> float:
        """Clip, step and count; the length of the gradient."""
        gradients = [each.grad for each in self.parameters.values() if each.grad is not None]
        norm = self.peers.norm(gradients)
        length = float(norm)
        if not torch.isfinite(norm):
            self._skip(length)
            return length
        if self.config.clip_norm is not None and length > self.config.clip_norm:
            clip_grads_with_norm_(self.parameters.values(), self.config.clip_norm, norm)
        rate = learning_rate(self.config, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self._bad_in_a_row = 0
        return length

    def _skip(self, length: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.skipped += 1
        self._bad_in_a_row += 1
        if self._bad_in_a_row >= MOST_SKIPPED:
            raise TrainError(
                f"the gradient was no number {self._bad_in_a_row} times in a row, {length} after {self.steps} steps; "
                "go back to an earlier checkpoint and lower optimizer.lr or optimizer.clip_norm"
            )

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.optimizer.state.get(parameter, {})
        return {key: value.clone() if value.ndim == 0 else self.peers.whole(value) for key, value in state.items()}

    def _check(self, state: dict[str, Any]) -> None:
        for name, weight in state["weights"].items():
            own = self.parameters.get(name)
            if own is None:
                raise TrainError(
                    f"the state has weights {name} that are not trained{did_you_mean(name, self.parameters)}"
                )
            if own.shape != weight.shape:
                raise TrainError(f"the state has {name} as {tuple(weight.shape)}, the network as {tuple(own.shape)}")
        missing = sorted(self.parameters.keys() - state["weights"].keys())
        if missing:
            raise TrainError(f"the state lacks {missing[0]} and {len(missing) - 1} more; it is of another network")


def score(network: nn.Module, rows: Rows, micro: MicroConfig, temperature: float = 1.0, peers: Peers = ALONE) -> Said:
    """What a policy says about the tokens of rows, (B, L); 0 where nothing was asked."""
    logprobs = torch.zeros(rows.mask.shape, device=rows.mask.device)
    entropy = torch.zeros_like(logprobs)
    with torch.no_grad():
        for piece in _pieces(network, rows, micro, peers):
            said: Said = network(piece.asked, temperature)
            gather(logprobs, piece, said.logprobs)
            gather(entropy, piece, said.entropy)
    return Said(peers.total(logprobs), peers.total(entropy))


def gather(into: Tensor, piece: Piece, numbers: Tensor) -> None:
    """Write what was said about a micro-batch's tokens to where they stand among all rows."""
    row, place = piece.where
    into[piece.rows[row], place] = numbers.detach().to(into.dtype)


def _pieces(network: nn.Module, rows: Rows, micro: MicroConfig, peers: Peers) -> Iterator[Piece]:
    shares = isinstance(network, Policy | Values) and network.shares
    return pieces(rows, micro, peers.rank, peers.size, shares=shares)


def _adamw(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    known = list(parameters)
    groups = [
        {"params": [each for each in known if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in known if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
