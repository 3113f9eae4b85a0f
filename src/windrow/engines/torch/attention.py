"""Attention over the slots: what a Hugging Face model calls in place of its own while the engine runs it.

All tokens of a step come in one row `[1, heads, tokens, head_dim]`, so that no layer computes padding; here, and only
here, they find their sequences again. Query heads that share a key head are folded into the query's length: the cache
is read once and never repeated. A model that is called by anybody else gets ordinary SDPA.

Promises: a token attends to its own sequence up to itself. With `Fixed` the arithmetic for a token is the same in
every step: the same shapes whatever else is there, blocks of keys in order, and a block beyond the token's own place
changes no bit.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from windrow.errors import ConfigError

ATTENTION = "windrow"
"""The name under which models find this attention."""

BLOCK = 128
"""Keys looked at together when every forward must have one shape."""

UNKNOWN = ("position_bias", "s_aux", "softcap")
"""What a model may ask of its attention and does not get here."""


class Span:
    """New tokens of several sequences, of about the same number, padded to one shape."""

    __slots__ = ("length", "mask", "places", "real", "rows")

    def __init__(self, rows: Tensor, places: Tensor, real: Tensor, mask: Tensor) -> None:
        self.rows = rows  # [spans] slots
        self.places = places  # [spans, queries] where each token stands in the step; padding repeats the last
        self.real = real  # [spans, queries] which of them are no padding
        self.mask = mask  # [spans, 1, queries, keys], added to the scores
        self.length = mask.shape[3]


class Ragged:
    """Some tokens of prompts first, then one token of each of the slots 0, 1, …"""

    __slots__ = ("length", "mask", "rows", "spans")

    def __init__(self, rows: int, length: int, mask: Tensor | None, spans: list[Span]) -> None:
        self.rows = rows
        self.length = length  # of the longest sequence
        self.mask = mask  # [rows, 1, 1, keys], added to the scores; None: all are as long as the longest
        self.spans = spans


class Fixed:
    """Any tokens of any slots, always as many."""

    __slots__ = ("masks", "rows")

    def __init__(self, rows: Tensor, masks: list[Tensor]) -> None:
        self.rows = rows  # [tokens] slots
        self.masks = masks  # one per block of keys: [tokens, 1, 1, BLOCK], added to the scores


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    windrow_layout: Ragged | Fixed | None = None,
    **kwargs: Any,  # noqa: ANN401  # whatever the model passes on
) -> tuple[Tensor, None]:
    """One layer's attention; `key` and `value` are the layer's whole store."""
    if windrow_layout is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return out
    for name in UNKNOWN:
        if kwargs.get(name) is not None:
            raise ConfigError(f"{type(module).__name__} wants {name} in its attention; the torch engine has none")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    tokens = query.transpose(1, 2)  # [1, tokens, heads, head_dim]
    if isinstance(windrow_layout, Fixed):
        return _fixed(tokens, key, value, windrow_layout, scale), None
    if not windrow_layout.spans:
        return _last(tokens, key, value, windrow_layout, scale), None
    return _ragged(tokens, key, value, windrow_layout, scale), None


def _last(tokens: Tensor, key: Tensor, value: Tensor, layout: Ragged, scale: float) -> Tensor:
    """One token of every slot."""
    _, rows, heads, _ = tokens.shape
    key_heads, length = key.shape[1], layout.length
    out = scaled_dot_product_attention(
        _folded(tokens, key_heads),
        key.as_strided((rows, key_heads, length, key.shape[3]), key.stride()),  # [:rows, :, :length] in one go
        value.as_strided((rows, key_heads, length, value.shape[3]), value.stride()),
        attn_mask=layout.mask,
        scale=scale,
    )
    return out.reshape(1, rows, heads, -1)


def _ragged(tokens: Tensor, key: Tensor, value: Tensor, layout: Ragged, scale: float) -> Tensor:
    """The last token of every slot, and one call for each span of further tokens."""
    out = tokens.new_empty(*tokens.shape[:3], value.shape[3])
    out[:, -layout.rows :] = _last(tokens[:, -layout.rows :], key, value, layout, scale)
    tokens, whole = tokens[0], out
    out = out[0]
    for span in layout.spans:
        many = scaled_dot_product_attention(
            tokens[span.places].transpose(1, 2),
            key[span.rows, :, : span.length],
            value[span.rows, :, : span.length],
            attn_mask=span.mask,
            scale=scale,
            enable_gqa=tokens.shape[1] != key.shape[1],
        )
        out[span.places[span.real]] = many.transpose(1, 2)[span.real]
    return whole


def _fixed(tokens: Tensor, key: Tensor, value: Tensor, layout: Fixed, scale: float) -> Tensor:
    """A running softmax over blocks of keys."""
    query = _folded(tokens, key.shape[1]) * scale
    highest = query.new_full((*query.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(highest)
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    for number, mask in enumerate(layout.masks):
        block = slice(number * BLOCK, (number + 1) * BLOCK)
        keys = key[:, :, block].index_select(0, layout.rows)
        values = value[:, :, block].index_select(0, layout.rows)
        scores = torch.matmul(query, keys.transpose(2, 3)) + mask
        peak = torch.maximum(highest, scores.amax(3, keepdim=True))  # finite: all see the first key of all
        shares = torch.exp(scores - peak)
        fade = torch.exp(highest - peak)
        total = total * fade + shares.sum(3, keepdim=True)
        out = out * fade + torch.matmul(shares, values)
        highest = peak
    return (out / total).reshape(*tokens.shape[:3], -1)


def _folded(tokens: Tensor, key_heads: int) -> Tensor:
    """`[1, tokens, heads, head_dim]` as `[tokens, key_heads, heads per key head, head_dim]`."""
    return tokens.reshape(tokens.shape[1], key_heads, -1, tokens.shape[3])


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
