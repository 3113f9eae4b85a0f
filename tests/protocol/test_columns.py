"""Verbs on columns: select, pop, rename, union."""

import numpy as np
import pytest
from tests.protocol.given import equal, numbers, proto, refused

from windrow.protocol import DataProto

torch = pytest.importorskip("torch")


def test_columns_are_told_by_name():
    data = proto(2)
    assert data.keys() == ["number", "vector", "text", "half"]
    assert data["number"].tolist() == [0, 1]
    assert data["text"].tolist() == ["row 0", "row 1"]
    assert "text" in data
    assert "texts" not in data


def test_an_unknown_column_gets_a_suggestion():
    data = proto()
    with refused("there is no column numbr; did you mean number?", data):
        data["numbr"]


def test_select_takes_all_of_a_kind_unless_told_which():
    data = proto(2, step=1, seed=2)
    assert equal(data.select(), data)
    chosen = data.select(["number"], ["half"], ["seed"])
    assert (chosen.keys(), chosen.meta_info) == (["number", "half"], {"seed": 2})
    assert data.select(batch_keys=["vector"]).keys() == ["vector", "text", "half"]
    assert data.select("number", "half").keys() == ["number", "half"], "one name needs no list"


def test_select_without_tensors_keeps_the_rows():
    assert len(proto(3).select([], [])) == 3


def test_select_shares_memory_unless_copied():
    data = proto(2)
    data.select(deepcopy=True)["number"][0] = 5
    assert numbers(data) == [0, 1]
    data.select(["vector"], [])["vector"][0, 0] = 5.0
    assert data["vector"][0, 0] == 5


@pytest.mark.parametrize("verb", ["select", "pop"])
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((["number", "nope"], [], []), "there is no column of batch nope; known are number, vector"),
        ((["text"], [], []), "there is no column of batch text"),
        ((["number"], ["halb"], []), "there is no column of non_tensor_batch halb; did you mean half?"),
        ((["number"], ["half"], ["stop"]), "there is no entry of meta_info stop; did you mean step?"),
    ],
)
def test_a_missing_name_is_refused_before_anything_changes(verb: str, keys, words: str):
    data = proto(2, step=1)
    with refused(words, data):
        getattr(data, verb)(*keys)


def test_pop_takes_out_what_it_returns():
    data = proto(2, step=1, seed=2)
    popped = data.pop(["vector"], ["text"], ["step"])
    assert (popped.keys(), popped.meta_info) == (["vector", "text"], {"step": 1})
    assert (data.keys(), data.meta_info) == (["number", "half"], {"seed": 2})


def test_pop_of_nothing_takes_nothing():
    data = proto(2, step=1)
    assert equal(data.pop(), DataProto())
    assert equal(data, proto(2, step=1))


def test_rows_stay_when_every_column_is_popped():
    data = proto(2)
    data.pop(["number", "vector"], ["text", "half"])
    assert (len(data), data.keys()) == (2, [])


def test_a_tensordict_that_was_handed_in_is_not_changed():
    batch = proto(2).batch
    assert batch is not None
    data = DataProto(batch)
    data.pop(["vector"])
    data.rename("number", "n").union(DataProto.from_dict({"more": torch.zeros(2)}))
    assert [*batch.keys()] == ["number", "vector"]


def test_pop_and_union_undo_each_other():
    data = proto(3, step=1)
    popped = data.pop(["number"], ["half"], ["step"])
    data.union(popped)
    assert set(data.keys()) == set(proto(3).keys())
    assert numbers(data) == [0, 1, 2]
    assert data.meta_info == {"step": 1}


def test_rename_changes_names_in_place():
    data = proto(2)
    assert data.rename(["number", "half"], ["n", "h"]) is data
    assert data.keys() == ["n", "vector", "text", "h"]
    assert data.rename("n", "number").keys() == ["number", "vector", "text", "h"]


def test_rename_can_swap_two_columns():
    data = proto(2).rename(["number", "vector"], ["vector", "number"])
    assert data["vector"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("nope", "x", "there is no column nope"),
        ("number", "half", "two columns would be called half; choose another name or pop one of them"),
        ("number", "vector", "two columns would be called vector"),
        (["number", "half"], ["x", "x"], "two columns would be called x"),
        (["number", "half"], ["x"], "2 columns cannot take 1 names; give one name for each"),
        ("number", "", "the name of a column must be a string that is not empty"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused(old, new, words: str):
    data = proto(2)
    with refused(words, data):
        data.rename(old, new)


def test_union_adds_in_place():
    data = proto(2, step=1)
    more = DataProto.from_dict({"more": torch.ones(2)}, {"label": ["a", "b"]}, {"seed": 3})
    assert data.union(more) is data
    assert data.keys() == ["number", "vector", "more", "text", "half", "label"]
    assert data.meta_info == {"step": 1, "seed": 3}


def test_union_accepts_equal_values_and_nan_equals_nan():
    nan = float("nan")
    values = {"f": torch.tensor([nan, 1.0]), "i": torch.tensor([1, 2])}
    arrays = {"a": np.array([nan, 2.0]), "o": np.array([nan, "x"], dtype=object), "t": np.array(["p", "q"])}
    meta = {"loss": nan, "nested": {"x": [nan, 1]}}
    one = DataProto.from_dict(values, arrays, meta)
    assert equal(one.union(one.clone()), one.clone())


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: DataProto.from_dict({"number": torch.tensor([0, 2])}), "column number differs on the two sides"),
        (lambda: DataProto.from_dict({"number": torch.tensor([0.0, 1.0])}), "column number differs"),
        (lambda: DataProto.from_dict({"number": torch.tensor([[0], [1]])}), "column number differs"),
        (lambda: DataProto.from_dict(non_tensors={"text": ["row 0", "row 2"]}), "column text differs"),
        (lambda: DataProto.from_dict(non_tensors={"number": np.arange(2)}), "number is in batch and in non_tensor"),
        (lambda: DataProto.from_dict({"x": torch.zeros(3)}), "a union needs equally many rows, got 2 and 3"),
        (lambda: DataProto(meta_info={"step": 2}), "meta_info step differs"),
        (lambda: DataProto(meta_info={"metrics": {"loss": 2.0}}), "metric loss differs"),
        (lambda: DataProto(meta_info={"metrics": [1]}), "meta_info metrics is"),
        (lambda: DataProto.from_dict({"new": torch.zeros(2)}, meta_info={"step": torch.zeros(2)}), "step differs"),
    ],
)
def test_union_with_what_differs_changes_nothing(other, words: str):
    data, made = proto(2, step=1, metrics={"loss": 1.0}), other()
    with refused(words, data, made):
        data.union(made)


def test_union_with_meta_information_alone_works_on_either_side():
    assert proto(2).union(DataProto(meta_info={"step": 1})).meta_info == {"step": 1}
    assert numbers(DataProto(meta_info={"step": 1}).union(proto(2))) == [0, 1]


def test_union_unites_metrics_one_by_one():
    data = DataProto(meta_info={"metrics": {"a": 1.0}}).union(DataProto(meta_info={"metrics": {"b": 2.0, "a": 1.0}}))
    assert data.meta_info == {"metrics": {"a": 1.0, "b": 2.0}}
    assert DataProto().union(data).meta_info == data.meta_info
