"""Which layouts are worth a look.

Promises: every layout that is named can be carried out: workers have as many devices as they need, training takes whole
engines or none, and what was said is kept. The simpler ones come first. The number of layouts grows with the logarithm
of the number of devices.
"""

from collections.abc import Iterator, Sequence

from windrow.cluster.mapping import Kind, Layout, chunks
from windrow.plan.question import Question

MANY = 8
"""Up to so many sizes of training are all looked at; of more, the powers of two, the half and the largest."""
SIMPLE: dict[Kind, int] = {"disjoint": 0, "colocated": 1, "overlapping": 2}
"""Nothing changes hands; everything does, at once; engines leave and come back while others go on."""


def candidates(question: Question) -> list[Layout]:
    """All and only the layouts that are compared."""
    found = [*_fitting(question, question.infer, question.train)]
    if question.given is not None:
        found = [question.given, *_fitting(question, None, None)]
    return [layout for place, layout in enumerate(found) if layout not in found[:place]]


def simplicity(layout: Layout) -> tuple[int, int]:
    """Smaller is simpler: by kind, then by how many devices train."""
    return SIMPLE[layout.kind], len(layout.train)


def _fitting(question: Question, infer: tuple[int, ...] | None, train: tuple[int, ...] | None) -> Iterator[Layout]:
    every = _without(range(question.devices), question.rewards)
    beside = _without(every, (*question.reference, *question.critic))
    found = [*_pairs(question, every, infer, train), *_pairs(question, beside, infer, train)]
    made = [_layout(question, on, by) for on, by in found if on]
    yield from sorted((layout for layout in made if _is_whole(layout)), key=simplicity)


def _pairs(
    question: Question, every: tuple[int, ...], infer: tuple[int, ...] | None, train: tuple[int, ...] | None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Devices of generation and of training."""
    each = question.infer_each
    if train is not None:
        rest = _without(every, train)
        shared = every if _is_whole(_layout(question, every, train)) else (*train, *rest)
        for on in [infer] if infer is not None else [_cut(shared, each), _cut(rest, each)]:
            yield on, train
        return
    mine = _cut(every, each) if infer is None else infer
    for size in _sizes(question, len(mine)):
        yield mine, mine[:size]
    for size in _sizes(question, len(every)):
        if infer is None:
            yield _cut(every[size:], each), every[:size]
        elif size <= len(_without(every, infer)):
            yield infer, _without(every, infer)[:size]


def _sizes(question: Question, most: int) -> list[int]:
    """How many devices training may have."""
    each = question.train_each
    sizes = [*range(each, most + 1, each)] if question.splits else [each]
    if len(sizes) <= MANY:
        return [size for size in sizes if size <= most]
    doubles = {each << power for power in range(most.bit_length())}
    return [size for size in sizes if size in doubles or size in (most // 2 // each * each, sizes[-1])]


def _layout(question: Question, infer: tuple[int, ...], train: tuple[int, ...]) -> Layout:
    return Layout(
        infer=infer,
        train=train,
        infer_each=question.infer_each,
        train_each=question.train_each,
        reference=question.reference,
        critic=question.critic,
    )


def _is_whole(layout: Layout) -> bool:
    """Training takes all devices of an engine or none."""
    shared = set(layout.shared)
    return all(
        len(shared.intersection(engine)) in (0, len(engine)) for engine in chunks(layout.infer, layout.infer_each)
    )


def _cut(devices: tuple[int, ...], each: int) -> tuple[int, ...]:
    """As many as there are whole workers for."""
    return devices[: len(devices) // each * each]


def _without(devices: Sequence[int], taken: Sequence[int]) -> tuple[int, ...]:
    return tuple(device for device in devices if device not in set(taken))
