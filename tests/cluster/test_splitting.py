"""Who gets what, and what the answers are together: tables."""

from typing import Any

import numpy as np
import pytest

from windrow import DataProto, Dispatch
from windrow.cluster.dispatch import Registered, Rule
from windrow.cluster.mesh import Mesh, Place
from windrow.cluster.splitting import collect, split
from windrow.errors import DataError


def method(mode: Dispatch = Dispatch.DP_MP_COMPUTE, **rule: Any) -> Registered:
    def work(self, rows=None, other=None, *more, named=None): ...

    return Registered(work, Rule(mode=mode, **rule))


def parts(made: Registered, mesh: Mesh, *arguments: Any, **options: Any) -> dict[int, list[Any]]:
    shares = split(made, mesh, arguments, options)
    return {rank: [*part.arguments, *part.options.values()] for rank, part in shares.parts.items()}


def test_ranks_count_tensor_parallel_first_then_rows_then_stages():
    mesh = Mesh(2, 2, 2)
    assert [mesh.place(rank) for rank in (0, 1, 2, 4, 7)] == [
        Place(0, 0, 0), Place(0, 1, 0), Place(1, 0, 0), Place(0, 0, 1), Place(1, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "speakers"),
    [
        (Mesh(4), [0, 1, 2, 3]),
        (Mesh(2, 2), [0, 2]),
        (Mesh(1, 4), [0]),
        (Mesh(2, 1, 2), [2, 3]),
        (Mesh(2, 2, 2), [4, 6]),
    ],
)
def test_the_first_of_the_last_stage_speaks(mesh: Mesh, speakers: list[int]):
    assert mesh.speakers() == speakers


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (Mesh(1), {0: [[1, 2, 3, 4]]}),
        (Mesh(2), {0: [[1, 2]], 1: [[3, 4]]}),
        (Mesh(2, 2), {0: [[1, 2]], 1: [[1, 2]], 2: [[3, 4]], 3: [[3, 4]]}),
        (Mesh(2, 1, 2), {0: [[1, 2]], 1: [[3, 4]], 2: [[1, 2]], 3: [[3, 4]]}),
    ],
)
def test_rows_go_to_everybody_who_holds_a_part_of_that_model(mesh: Mesh, expected: dict[int, list[Any]]):
    assert parts(method(), mesh, [1, 2, 3, 4]) == expected


def test_those_who_get_the_same_get_the_same_object():
    shares = split(method(), Mesh(2, 2), ([1, 2],), {})
    assert shares.parts[0] is shares.parts[1] is not shares.parts[2]


def test_what_has_no_rows_goes_to_everybody():
    empty = DataProto(meta_info={"step": 3})
    assert parts(method(), Mesh(2), [1, 2], "text", (5, 6), named=empty) == {
        0: [[1], "text", (5, 6), empty],
        1: [[2], "text", (5, 6), empty],
    }


def test_more_arguments_than_have_names_are_shared_out_too():
    assert parts(method(), Mesh(2), [1, 2], [3, 4], [5, 6]) == {0: [[1], [3], [5]], 1: [[2], [4], [6]]}


@pytest.mark.parametrize(
    ("rule", "arguments", "why"),
    [
        ({}, ([1, 2, 3],), "work: 3 rows of rows cannot be shared out to 2 data-parallel ranks; pad the batch, or"),
        ({}, ([1, 2], [1, 2, 3, 4]), r"work: rows has 2 rows and other has 4; .* whole=\('other',\)"),
        ({}, ([1, 2], [1, 2], [1]), "work: rows has 2 rows and argument 2 has 1"),
        ({}, (3, "text"), "work: there is nothing to share out to data-parallel ranks; .* register it as ONE_TO_ALL"),
        ({"pad": True}, ([1, 2], [1]), "rows has 2 rows and other has 1"),
        ({"whole": ("rows",)}, ([1, 2],), "there is nothing to share out"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(rule: dict[str, Any], arguments: tuple[Any, ...], why: str):
    with pytest.raises(DataError, match=why):
        parts(method(**rule), Mesh(2), *arguments)


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("dp", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["list", "array", "batch"])
def test_no_row_is_lost_doubled_or_moved_by_padding(rows: int, dp: int, kind: str):
    """Also where the padding is longer than the batch."""
    made = method(pad=True)
    values = [*range(rows)]
    given: Any = {"list": values, "array": np.array(values), "batch": DataProto.from_dict(non_tensors={"x": values})}
    shares = split(made, Mesh(dp), (given[kind],), {})
    answers = [shares.parts[rank].arguments[0] for rank in shares.wanted]
    assert len({len(answer) for answer in answers}) == 1
    got = collect(made, shares, answers)
    assert [*(got["x"] if kind == "batch" else got)] == values


@pytest.mark.parametrize(
    ("answers", "together"),
    [
        ([None, None], None),
        ([[1], [2, 3]], [1, 2, 3]),
        ([{"loss": 1}, {"loss": 2}], [{"loss": 1}, {"loss": 2}]),
        ([1.0, 2.0], [1.0, 2.0]),
        ([(1,), (2,)], [(1,), (2,)]),
    ],
)
def test_answers_with_rows_become_one_and_others_a_list(answers: list[Any], together: Any):
    made = method()
    assert collect(made, split(made, Mesh(2), ([1, 2],), {}), answers) == together


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([[1], None], "work: data-parallel ranks answered with NoneType and list; all must give the same kind"),
        ([[1], np.array([1])], "answered with list and ndarray"),
    ],
)
def test_answers_of_different_kinds_are_refused(answers: list[Any], why: str):
    made = method()
    with pytest.raises(DataError, match=why):
        collect(made, split(made, Mesh(2), ([1, 2],), {}), answers)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (
            [[1], [2]],
            "3 rows were padded to 4 and the answer is 2 rows; a method with pad=True must answer with one row",
        ),
        ([{"loss": 1}, {"loss": 2}], r"padded to 4 and the answer is list|answer is 2 rows"),
    ],
)
def test_padding_that_cannot_be_taken_off_is_told(answers: list[Any], why: str):
    made = method(pad=True)
    with pytest.raises(DataError, match=why):
        collect(made, split(made, Mesh(2), ([1, 2, 3],), {}), answers)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (7, "work: rows must be a list with one item for each worker, got int"),
        ([1], "rows has 1 items and there are 2"),
    ],
)
def test_all_to_all_wants_one_for_each(given: Any, why: str):
    with pytest.raises(DataError, match=why):
        parts(method(Dispatch.ALL_TO_ALL), Mesh(2), given)
