"""Verbs on rows: indexing, chunks, order, groups, mini-batches, padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.given import equal, numbers, proto, refused

from windrow.protocol import DataProto, DataProtoItem

torch = pytest.importorskip("torch")


def test_a_number_gives_one_row():
    item = proto(3, step=1)[1]
    assert isinstance(item, DataProtoItem)
    assert item.batch is not None
    assert item.batch["number"].item() == 1
    assert item.batch["vector"].tolist() == [2.0, 3.0]
    assert item.non_tensor_batch == {"text": "row 1", "half": 0.5}
    assert item.meta_info == {"step": 1}
    assert proto(3)[-1].non_tensor_batch["text"] == "row 2"
    assert proto(3)[np.int64(2)].non_tensor_batch["text"] == "row 2"


def test_iterating_gives_each_row_once():
    assert [item.non_tensor_batch["text"] for item in proto(3)] == ["row 0", "row 1", "row 2"]


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        ([2, 0, 0], [2, 0, 0]),
        ([-1], [3]),
        ([], []),
        (np.array([1, 3]), [1, 3]),
        (np.array([1, 3], np.uint8), [1, 3]),
        (torch.tensor([3, 1]), [3, 1]),
        ([True, False, False, True], [0, 3]),
        (np.array([False, True, False, False]), [1]),
        (torch.tensor([False, False, True, True]), [2, 3]),
        (range(1, 3), [1, 2]),
    ],
)
def test_rows_are_chosen_by_number_or_mask(index, rows: list[int]):
    assert numbers(proto(4)[index]) == rows
    assert numbers(proto(4).select_idxs(index)) == rows


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (4, "there is no row 4 in a batch of 4"),
        (-5, "there is no row -5 in a batch of 4"),
        ([0, 4], "there is no row 4 in a batch of 4"),
        (torch.tensor([-9]), "there is no row -9"),
        ([True, False], "a mask over 4 rows must have as many entries, got 2"),
        ([0.5], "rows are chosen by whole numbers or a mask, got float64"),
        (["a"], "rows are chosen by whole numbers or a mask"),
        (np.zeros((2, 2), int), "a flat list of numbers or a mask, got shape (2, 2)"),
        (slice(None, None, 0), "rows cannot be sliced with step 0"),
        (None, "a flat list of numbers or a mask, got shape ()"),
    ],
)
def test_rows_that_are_not_there_are_refused(index, words: str):
    data = proto(4)
    with refused(words, data):
        data[index]


bounds = st.none() | st.integers(-7, 7)


@given(bounds, bounds, st.none() | st.integers(-3, 3).filter(bool))
def test_slices_are_those_of_a_list(start: int | None, end: int | None, step: int | None):
    expected = list(range(5))[start:end:step]
    assert numbers(proto(5)[start:end:step]) == expected
    assert numbers(proto(5).slice(start, end, step)) == expected


def test_a_slice_shares_memory_and_a_choice_is_a_copy():
    data = proto(4)
    data.slice(1, 3)["number"][0] = 9
    data[[0]]["number"][0] = 9
    assert data["number"].tolist() == [0, 9, 2, 3]


@given(st.integers(1, 4), st.integers(0, 4))
def test_chunks_put_together_are_the_whole(chunks: int, rows: int):
    data = proto(chunks * rows, step=1, metrics={"loss": 0.1, "tokens": 7})
    parts = data.chunk(chunks)
    assert [len(part) for part in parts] == [rows] * chunks
    assert equal(DataProto.concat(parts), data)


def test_chunks_of_meta_information_alone_are_copies_of_it():
    assert [part.meta_info for part in DataProto(meta_info={"a": 1}).chunk(2)] == [{"a": 1}] * 2


def test_chunks_have_their_own_meta_information():
    first, second = proto(2, step=1).chunk(2)
    first.meta_info["step"] = 2
    assert second.meta_info == {"step": 1}


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        (3, "4 rows cannot be cut into 3 equal parts; use pad_to_divisor(3) first"),
        (0, "chunks must be 1 or more, got 0"),
    ],
)
def test_parts_that_cannot_be_equal_are_refused(chunks: int, words: str):
    data = proto(4)
    with refused(words, data):
        data.chunk(chunks)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_concatenated_rows_follow_each_other(lengths: list[int]):
    whole = DataProto.concat([proto(rows) for rows in lengths])
    assert numbers(whole) == [row for rows in lengths for row in range(rows)]
    assert whole["number"].dtype == torch.int64


def test_texts_of_any_width_are_concatenated():
    parts = [DataProto(non_tensor_batch={"t": np.array([text])}) for text in ("a", "long")]
    assert DataProto.concat(parts)["t"].tolist() == ["a", "long"]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "there is nothing to concatenate"),
        ([proto(1), proto(1).select(["number"])], "column vector of batch is only in some of the batches"),
        ([proto(1), proto(1).select(None, ["half"])], "column text of non_tensor_batch is only in some"),
        ([proto(1).select([], []), DataProto()], "some of the batches have tensors and some have none"),
        (
            [DataProto.from_dict({"a": torch.zeros(1, 3)}), DataProto.from_dict({"a": torch.zeros(1, 4)})],
            "column a is float32 (1, 3) in one part and float32 (1, 4) in another",
        ),
        (
            [DataProto.from_dict({"a": torch.zeros(1)}), DataProto.from_dict({"a": torch.zeros(1).long()})],
            "column a is float32 (1,) in one part and int64 (1,) in another; they must agree",
        ),
        (
            [DataProto(non_tensor_batch={"a": np.zeros(1)}), DataProto(non_tensor_batch={"a": np.zeros(1, int)})],
            "column a is float64 (1,) in one part and int64 (1,) in another",
        ),
    ],
)
def test_batches_that_do_not_continue_each_other_are_refused(parts: list[DataProto], words: str):
    with refused(words, *parts):
        DataProto.concat(parts)


def test_rows_are_repeated_beside_each_other_or_in_turn():
    assert numbers(proto(2).repeat(3)) == [0, 0, 0, 1, 1, 1]
    assert numbers(proto(2).repeat(3, interleave=False)) == [0, 1, 0, 1, 0, 1]
    with refused("repeat_times must be 1 or more, got 0"):
        proto(2).repeat(0)


@given(st.permutations(range(4)))
def test_reordering_happens_in_place_and_can_be_undone(order: list[int]):
    data = proto(4)
    assert data.reorder(torch.tensor(order)) is data
    assert numbers(data) == order
    assert equal(data.reorder(np.argsort(order)), proto(4))


@pytest.mark.parametrize("order", [[0, 1], [0, 0, 1, 2], [1, 2, 3, 4]])
def test_an_order_names_each_row_once(order: list[int]):
    data = proto(4)
    words = "there is no row 4" if 4 in order else "an order must name each of 4 rows once; to choose rows use select"
    with refused(words, data):
        data.reorder(order)


def test_groups_keep_the_type_of_their_key_and_the_order_of_appearance():
    data = proto(4)
    data.non_tensor_batch["tag"] = np.array(["b", "a", "b", "a"])
    data.union(DataProto.from_dict({"group": torch.tensor([7, 7, 3, 7])}))
    by_tag, by_group = data.group_by("tag"), data.group_by("group")
    assert {key: numbers(part) for key, part in by_tag.items()} == {"b": [0, 2], "a": [1, 3]}
    assert [(type(key), key) for key in by_group] == [(int, 7), (int, 3)]
    assert [type(key) for key in by_tag] == [str, str]
    assert {key: numbers(part) for key, part in data.group_by(["group", "tag"]).items()} == {
        (7, "b"): [0],
        (7, "a"): [1, 3],
        (3, "b"): [2],
    }
    assert [*data.group_by(["group"])] == [7, 3]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("nope", "there is no column nope"),
        ([], "group_by needs at least one column"),
        ("vector", "column vector has shape (4, 2); rows are grouped by one value each"),
        ("lists", "rows cannot be grouped by lists: unhashable type: 'list'"),
    ],
)
def test_what_cannot_be_a_group_is_refused(keys, words: str):
    data = proto(4)
    data.non_tensor_batch["lists"] = np.array([[1], None, None, None], dtype=object)
    with refused(words, data):
        data.group_by(keys)


def test_mini_batches_come_in_order_every_epoch():
    parts = proto(4, step=1).make_iterator(2, epochs=2)
    assert [(numbers(part), part.meta_info["step"]) for part in parts] == [([0, 1], 1), ([2, 3], 1)] * 2


def test_shuffled_mini_batches_hold_every_row_once_per_epoch_and_depend_on_the_seed_alone():
    def epochs(seed: int) -> list[list[int]]:
        parts = [numbers(part) for part in proto(8).make_iterator(4, 2, seed, {"shuffle": True})]
        return [parts[0] + parts[1], parts[2] + parts[3]]

    first, second = epochs(1)
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert epochs(1) == [first, second]
    assert epochs(2) != [first, second]


def test_rows_that_fill_no_mini_batch_are_dropped_only_if_asked():
    parts = proto(5).make_iterator(2, 1, dataloader_kwargs={"drop_last": True})
    assert [numbers(part) for part in parts] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("size", "epochs", "options", "words"),
    [
        (3, 1, None, "4 rows are no multiple of mini_batch_size 3; use pad_to_divisor(3) first, or drop_last"),
        (0, 1, None, "mini_batch_size must be 1 or more, got 0"),
        (2, 0, None, "epochs must be 1 or more, got 0"),
        (2, 1, {"shufle": True}, "there is no option shufle; did you mean shuffle?"),
        (2, 1, {"num_workers": 4}, "there is no option num_workers; known are shuffle, drop_last"),
    ],
)
def test_mini_batches_that_cannot_be_made_are_refused_at_once(size: int, epochs: int, options, words: str):
    with refused(words):
        proto(4).make_iterator(size, epochs, dataloader_kwargs=options)


@given(st.integers(1, 9), st.integers(1, 7))
def test_padding_repeats_rows_from_the_beginning_and_can_be_taken_off(rows: int, divisor: int):
    data = proto(rows, step=1)
    padded, pad_size = data.pad_to_divisor(divisor)
    assert len(padded) % divisor == 0
    assert len(padded) == rows + pad_size < rows + divisor
    assert numbers(padded) == [row % rows for row in range(rows + pad_size)]
    assert equal(padded.unpad(pad_size), data)


def test_no_rows_need_no_padding():
    assert proto(0).pad_to_divisor(3).pad_size == 0


@pytest.mark.parametrize("pad_size", [-1, 5])
def test_more_than_all_rows_cannot_be_taken_off(pad_size: int):
    data = proto(4)
    with refused(f"pad_size must be between 0 and the 4 rows, got {pad_size}", data):
        data.unpad(pad_size)
