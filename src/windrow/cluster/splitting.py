"""Who gets which part of a call's arguments, and what the answers are together.

Promises: pure; no row is lost, doubled or moved. A batch that data-parallel ranks do not divide is refused, or padded
if the method says so, and then the answer is as long as the question. Those who get the same get the same object, so
that it has to be sent only once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from windrow.cluster.dispatch import Dispatch, Registered
from windrow.cluster.mesh import Mesh
from windrow.errors import DataError
from windrow.protocol import DataProto
from windrow.protocol.columns import Column, is_tensor, joined
from windrow.types import Value

Rows: TypeAlias = "DataProto | list[Any] | Column"
"""What can be cut into rows."""


class Part(Value, frozen=True, gc=True):
    """What one worker is called with."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Shares(Value, frozen=True, kw_only=True, gc=True):
    """A call, taken apart."""

    parts: dict[int, Part]
    """By rank: all and only those who are called."""
    wanted: tuple[int, ...]
    """Whose answers are wanted, in the order in which they are put together."""
    rows: int = 0
    """Of the whole batch, before padding."""
    padded: int = 0
    """Rows that were added at its end."""


def split(method: Registered, mesh: Mesh, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Shares:
    """Who is called with what."""
    whole = Part(arguments, dict(options))
    names = [*method.names(arguments, whole.options), *options]
    everybody = range(mesh.size)
    match method.rule.mode:
        case Dispatch.ONE_TO_ALL:
            return Shares(parts=dict.fromkeys(everybody, whole), wanted=tuple(everybody))
        case Dispatch.ONE_TO_ALL_ONE:
            return Shares(parts=dict.fromkeys(everybody, whole), wanted=(0,))
        case Dispatch.RANK_ZERO:
            return Shares(parts={0: whole}, wanted=(0,))
        case Dispatch.ALL_TO_ALL:
            return _items(method.name, mesh.size, whole, names)
        case Dispatch.DP_MP_COMPUTE:
            return _rows(method, mesh, whole, names)


def collect(method: Registered, shares: Shares, answers: Sequence[Any]) -> Any:  # noqa: ANN401 -- whatever they are
    """What the wanted answers are together."""
    match method.rule.mode:
        case Dispatch.ONE_TO_ALL_ONE | Dispatch.RANK_ZERO:
            return answers[0]
        case Dispatch.ONE_TO_ALL | Dispatch.ALL_TO_ALL:
            return [*answers]
        case Dispatch.DP_MP_COMPUTE:
            return _unpadded(method.name, shares, _together(method.name, answers))


def _items(method: str, size: int, whole: Part, names: Sequence[str]) -> Shares:
    for name, value in zip(names, _values(whole), strict=True):
        if not isinstance(value, list | tuple):
            raise DataError(f"{method}: {name} must be a list with one item for each worker, got {_kind(value)}")
        if len(value) != size:
            raise DataError(f"{method}: {name} has {len(value)} items and there are {size} workers; give one for each")
    parts = {rank: _changed(whole, partial(_item, rank), names) for rank in range(size)}
    return Shares(parts=parts, wanted=tuple(range(size)))


def _item(rank: int, _: str, value: Sequence[Any]) -> Any:  # noqa: ANN401 -- whatever it is
    return value[rank]


def _rows(method: Registered, mesh: Mesh, whole: Part, names: Sequence[str]) -> Shares:
    lengths = {
        name: len(value)
        for name, value in zip(names, _values(whole), strict=True)
        if name not in method.rule.whole and _is_rows(value)
    }
    rows = _agreed(method.name, lengths)
    padded = -rows % mesh.dp
    if padded and not (method.rule.pad and rows):
        raise DataError(
            f"{method.name}: {rows} rows of {next(iter(lengths))} cannot be shared out to {mesh.dp} data-parallel "
            f"ranks; pad the batch, or register the method with pad=True"
        )
    each = (rows + padded) // mesh.dp

    def cut(dp_rank: int) -> Part:
        begin = dp_rank * each
        return _changed(
            whole, lambda name, value: _cut(value, begin, begin + each, rows) if name in lengths else value, names
        )

    parts = [cut(dp_rank) for dp_rank in range(mesh.dp)]
    by_rank = {rank: parts[mesh.place(rank).dp_rank] for rank in range(mesh.size)}
    return Shares(parts=by_rank, wanted=tuple(mesh.speakers()), rows=rows, padded=padded)


def _agreed(method: str, lengths: Mapping[str, int]) -> int:
    """How many rows all arguments have."""
    if not lengths:
        raise DataError(
            f"{method}: there is nothing to share out to data-parallel ranks; give it a batch, a list, a tensor or an "
            f"array, or register it as ONE_TO_ALL"
        )
    (first, rows), *others = lengths.items()
    for name, length in others:
        if length != rows:
            raise DataError(
                f"{method}: {first} has {rows} rows and {name} has {length}; give equally many, or register the method "
                f"with whole=({name!r},) if everybody is to have all of it"
            )
    return rows


def _cut(value: Rows, begin: int, end: int, rows: int) -> Rows:
    """Some rows; those beyond the end are rows from the beginning again."""
    if end <= rows:
        return value[begin:end]
    places = [place % rows for place in range(begin, end)]
    if isinstance(value, list):
        return [value[place] for place in places]
    return value[places]


def _together(method: str, answers: Sequence[Any]) -> Any:  # noqa: ANN401 -- whatever they are
    """Rows one after the other; None if nobody has anything to say; else a list of what each said."""
    if all(answer is None for answer in answers):
        return None
    if not any(_is_rows(answer) for answer in answers):
        return [*answers]
    kinds = sorted({_kind(answer) for answer in answers})
    if len(kinds) > 1 or not all(_is_rows(answer) for answer in answers):
        raise DataError(
            f"{method}: data-parallel ranks answered with {' and '.join(kinds)}; all must give the same kind"
        )
    first = answers[0]
    if isinstance(first, DataProto):
        return DataProto.concat(answers)
    if isinstance(first, list):
        return [entry for answer in answers for entry in answer]
    return joined(f"answered by {method}", answers)


def _unpadded(method: str, shares: Shares, answer: Any) -> Any:  # noqa: ANN401 -- whatever it is
    if not shares.padded or answer is None:
        return answer
    expected = shares.rows + shares.padded
    if not _is_rows(answer) or len(answer) != expected:
        got = f"{len(answer)} rows" if _is_rows(answer) else _kind(answer)
        raise DataError(
            f"{method}: {shares.rows} rows were padded to {expected} and the answer is {got}; a method with pad=True "
            f"must answer with one row for each"
        )
    return answer[: shares.rows]


def _is_rows(value: object) -> bool:
    """A batch with columns, a list, or a tensor or array that is more than one number."""
    if isinstance(value, DataProto):
        return bool(value.keys())
    return isinstance(value, list) or ((is_tensor(value) or isinstance(value, np.ndarray)) and value.ndim > 0)


def _values(part: Part) -> list[Any]:
    return [*part.arguments, *part.options.values()]


def _changed(part: Part, change: Callable[[str, Any], Any], names: Sequence[str]) -> Part:
    """The same call with other values."""
    values = [change(name, value) for name, value in zip(names, _values(part), strict=True)]
    count = len(part.arguments)
    return Part(tuple(values[:count]), dict(zip(part.options, values[count:], strict=True)))


def _kind(value: object) -> str:
    return type(value).__name__
