"""What a model says about given tokens: how probable they were, or what they were worth.

Axes: B rows, L places, N tokens that are asked about, V vocabulary, H width of the model.

Promises: everything happens in one `forward`, so that whoever shards these modules finds all parameters used inside it.
Logits are computed only at places that are asked about, in float32 from there on, and never for more of them at once
than fit into `CHUNK` numbers. Whatever a model does to its logits after its head is done here too.

Rows are padded on the right, and attention is causal: what stands behind a token cannot change what is said about it.
So no mask is needed. Packed rows stand behind each other in one sequence; positions that begin again keep them apart.
With flash attention that costs what the rows cost; with sdpa and eager a whole mask is made, and every row pays for the
length of all, which only short sequences forgive.

What rows begin with in common may be read once (`windrow.train.attention`). A model can do so if all its layers look at
everything before a token, its attention is sdpa, and it proves on the spot that it says the same either way.
"""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from windrow.errors import ConfigError, blame
from windrow.train.attention import ATTENTION, Layout

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

CHUNK = 1 << 25
"""Logits that exist at once: 128 MiB in float32."""

TOLERANCE = 1e-4
"""How far two ways to the same logits may lie apart, as a share of the largest."""


class Asked(NamedTuple):
    """Tokens that a model reads, and those among them that it is asked about."""

    input_ids: Tensor
    """(B, L), or (1, L) with all rows behind each other, or (1, L) with every token once."""
    position_ids: Tensor | None
    """None: each row begins at 0."""
    sources: Tensor
    """(N,) places in the flattened ids from which each token is predicted: the one before it."""
    targets: Tensor
    """(N,) the tokens."""
    layout: Layout | None = None
    """Where the tokens of rows are that have some in common."""


class Said(NamedTuple):
    """One number per token that was asked about."""

    logprobs: Tensor
    entropy: Tensor
    """Of the distribution that the token came from."""


class Policy(nn.Module):
    """The probabilities that a causal language model gives to tokens."""

    def __init__(self, model: "PreTrainedModel", *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self._plain = _has_plain_head(bare(model))
        self._can_share = can_share(bare(model))

    @property
    def backbone(self) -> nn.Module:
        """Everything before the head."""
        return bare(self.model).base_model

    @property
    def shares(self) -> bool:
        """Whether it reads what rows have in common once; not if somebody gave it another attention meanwhile."""
        return self._can_share and _attention(bare(self.model).config) == ATTENTION

    def forward(self, asked: Asked, temperature: float, *, entropy_counts: bool = False) -> Said:
        """`entropy_counts`: gradients flow through the entropy too."""
        device = asked.input_ids.device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            if not self._plain:
                return _said(self._own_logits(asked), asked.targets, temperature, entropy_counts=entropy_counts)
            picked = read(self.backbone, asked).flatten(0, 1).index_select(0, asked.sources)
            return self._chunked(picked, asked.targets, temperature, entropy_counts=entropy_counts)

    def _chunked(self, picked: Tensor, targets: Tensor, temperature: float, *, entropy_counts: bool) -> Said:
        head = _head(bare(self.model))
        size = max(1, CHUNK // bare(self.model).config.get_text_config().vocab_size)

        def chunk(hidden: Tensor, tokens: Tensor) -> Said:
            return _said(head(hidden), tokens, temperature, entropy_counts=entropy_counts)

        if len(targets) <= size:
            return chunk(picked, targets)
        again = picked.requires_grad  # logits are thrown away and computed again in the backward pass
        parts = [
            cast("Said", checkpoint(chunk, *piece, use_reentrant=False)) if again else chunk(*piece)
            for piece in zip(torch.split(picked, size), torch.split(targets, size), strict=True)
        ]
        return Said(torch.cat([part.logprobs for part in parts]), torch.cat([part.entropy for part in parts]))

    def _own_logits(self, asked: Asked) -> Tensor:
        """As the model computes them, at the places that are asked about."""

        def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (args[0].flatten(0, 1).index_select(0, asked.sources)[None], *args[1:])

        model = bare(self.model)
        hook = _head(model).register_forward_pre_hook(pick)
        try:
            logits: Tensor = model(**_inputs(asked)).logits
        finally:
            hook.remove()
        return logits[0]


class Values(nn.Module):
    """What is still to come, said before each token: a language model with one number for a head, 0 at first."""

    def __init__(self, model: "PreTrainedModel", *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.backbone: nn.Module = bare(model).base_model
        self.dtype = dtype
        self._config = bare(model).config
        self._can_share = can_share(bare(model))
        width = int(model.config.get_text_config().hidden_size)
        self.head = nn.Linear(width, 1, device=model.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def shares(self) -> bool:
        """Whether it reads what rows have in common once; not if somebody gave it another attention meanwhile."""
        return self._can_share and _attention(self._config) == ATTENTION

    def forward(self, asked: Asked) -> Tensor:
        """(N,) the value of the state in which each token was sampled."""
        device = asked.input_ids.device.type
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            picked = read(self.backbone, asked).flatten(0, 1).index_select(0, asked.sources).float()
        return cast("Tensor", self.head(picked))[:, 0]


def check_packing(network: Policy | Values) -> None:
    """Two short rows behind each other must be read as each alone; raises ConfigError if this model mixes them."""
    backbone = network.backbone
    device = next(backbone.parameters()).device
    one, other = torch.tensor([[1, 2, 3, 4]], device=device), torch.tensor([[5, 6, 7]], device=device)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2]], device=device)
    name, none = type(backbone).__name__, places[0, :0]
    with torch.no_grad(), blame(ConfigError, f"{name} cannot read packed rows, set train.micro.packing=false"):
        apart = torch.cat([read(backbone, Asked(row, None, none, none)) for row in (one, other)], 1)
        packed = read(backbone, Asked(torch.cat([one, other], 1), places, none, none))
    if not bool((apart - packed).abs().max() <= 10 * TOLERANCE * apart.abs().max()):
        raise ConfigError(f"{name} does not keep packed rows apart with its attention; set train.micro.packing=false")


def can_share(model: "PreTrainedModel") -> bool:
    """Whether a model reads rows with a layout as it reads each alone; if so it can from now on."""
    usual = _attention(model.config)
    if usual not in ("sdpa", ATTENTION) or not _looks_at_everything(model) or _forgets_at_random(model):
        return False
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 5, 6]], device=model.device) % vocabulary
    tokens = torch.tensor([0, 1, 2, 3, 0, 1, 4, 5], device=model.device)
    firsts = torch.tensor([0, 1, 2, 3, 6, 7], device=model.device)
    none, layout = firsts[:0], Layout(tokens, ((2, 4),), firsts)
    once = Asked(ids.flatten()[firsts][None], (firsts % 4)[None], none, none, layout)
    try:
        with torch.no_grad(), blame(ConfigError, "rows with tokens in common"):
            apart = read(model.base_model, Asked(ids, None, none, none)).flatten(0, 1)
            model.set_attn_implementation(ATTENTION)
            shared = read(model.base_model, once)[0, tokens]
            alike = bool((apart - shared).abs().max() <= 10 * TOLERANCE * apart.abs().max())
    except ConfigError:
        alike = False
    if not alike:
        model.set_attn_implementation(usual)
    return alike


def bare(model: "PreTrainedModel") -> "PreTrainedModel":
    """The model itself, whose layers may have adapters in them, without what peft puts around it."""
    if type(model).__module__.startswith("peft."):
        return cast("PreTrainedModel", model.get_base_model())  # type: ignore[operator]  # peft's
    return model


def _head(model: "PreTrainedModel") -> nn.Module:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers'
    if head is None:
        raise ConfigError(f"{type(model).__name__} has no head over a vocabulary; give a causal language model")
    return cast("nn.Module", head)


def read(backbone: nn.Module, asked: Asked) -> Tensor:
    """(B, L, H) what a head is given."""
    return cast("Tensor", backbone(**_inputs(asked)).last_hidden_state)


def _inputs(asked: Asked) -> dict[str, Tensor | Layout | bool]:
    """As transformers calls them; models without positions are not told of any."""
    inputs: dict[str, Tensor | Layout | bool] = {"input_ids": asked.input_ids, "use_cache": False}
    if asked.position_ids is not None:
        inputs["position_ids"] = asked.position_ids
    if asked.layout is not None:
        inputs["windrow_layout"] = asked.layout
        inputs["attention_mask"] = torch.zeros(1, 1, 1, 1, device=asked.input_ids.device)  # or a model makes one
    return inputs


def _has_plain_head(model: "PreTrainedModel") -> bool:
    """Whether logits are what the head makes of the last layer, with nothing done to them afterwards."""
    head = _head(model)
    if model.base_model is model:
        return False  # there is no part of it that gives the last layer alone
    ids = torch.arange(1, 5, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits.float()
        ours = head(read(model.base_model, Asked(ids, None, ids, ids))).float()
    return bool((own - ours).abs().max() <= TOLERANCE * own.abs().max())


def _attention(config: "PretrainedConfig") -> str | None:
    """How a model with this configuration computes attention."""
    return cast("str | None", config._attn_implementation)  # noqa: SLF001  # no public way to ask


def _looks_at_everything(model: "PreTrainedModel") -> bool:
    """Whether every layer sees all tokens before one, by keys and values; windows and states do not."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    if model._is_stateful or not model._can_set_attn_implementation():  # noqa: SLF001  # no public way to ask
        return False
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def _forgets_at_random(model: "PreTrainedModel") -> bool:
    """Whether adapters have dropout, which each row has of its own."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def _said(logits: Tensor, targets: Tensor, temperature: float, *, entropy_counts: bool) -> Said:
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    everything = torch.log_softmax(logits, dim=-1)  # (N, V)
    logprobs = everything.gather(1, targets[:, None])[:, 0]
    if entropy_counts:
        return Said(logprobs, _entropy(everything))
    with torch.no_grad():
        return Said(logprobs, _entropy(everything))


def _entropy(logprobs: Tensor) -> Tensor:
    """(N,) from (N, V); a token that cannot come has a logarithm that is no number to count with."""
    return -(logprobs.exp() * logprobs.clamp(min=-100.0)).sum(-1)
