"""Attention over rows that have tokens in common: what a model calls in place of its own where it can.

Axes: P places of all rows, padding included, T tokens that are different from each other.

All tokens come in one sequence `[1, heads, T, head_dim]`, each once; here, and only here, rows find their tokens again.
So what a layer does to single tokens is done once for all rows that begin alike, and without padding, while attention
costs what it costs row by row: no mask is made.

Promises: a token sees its own row up to itself. The gradient of a token is the sum over the rows that have it. A model
that is called without a layout gets ordinary SDPA.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "windrow_rows"
"""The name under which models find this attention."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the tokens of rows are; rows of about equal length are read together, padded."""

    tokens: Tensor
    """(P,) the token at each place of all rows, block after block; padding repeats the last of its row."""
    blocks: tuple[tuple[int, int], ...]
    """Rows and width of each block."""
    places: Tensor
    """(T,) for each token one place where it stands."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    windrow_layout: Layout | None = None,
    **kwargs: Any,  # noqa: ANN401  # whatever the model passes on
) -> tuple[Tensor, None]:
    """One layer's attention, (1, T, heads, head_dim)."""
    if windrow_layout is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out
    sizes = [rows * width for rows, width in windrow_layout.blocks]
    split = (torch.split(_spread(each[0].transpose(0, 1), windrow_layout), sizes) for each in (query, key, value))
    said = []
    for (rows, width), *parts in zip(windrow_layout.blocks, *split, strict=True):
        q, k, v = (part.view(rows, width, *part.shape[1:]).transpose(1, 2) for part in parts)
        said.append(sdpa_attention_forward(module, q, k, v, None, **kwargs)[0].flatten(0, 1))
    return torch.cat(said).index_select(0, windrow_layout.places)[None], None


def _spread(tokens: Tensor, layout: Layout) -> Tensor:
    """(P, heads, head_dim) from (T, heads, head_dim)."""
    # an embedding adds up the gradients of a token in a fixed order
    return embedding(layout.tokens, tokens.flatten(1)).view(-1, *tokens.shape[1:])


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
