"""What a DataProto is made of, and what does not fit together."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tests.protocol.given import equal, proto, refused

from windrow.errors import DataError, WindrowError
from windrow.protocol import DataProto

torch = pytest.importorskip("torch")
TensorDict = pytest.importorskip("tensordict").TensorDict


def test_meta_information_alone_needs_no_torch():
    code = (
        "import sys, pickle; from windrow.protocol import DataProto; data = DataProto(meta_info={'global_step': 3}); "
        "data.clone(); data.chunk(2); DataProto.concat([data, data]); data.to('cpu'); data.select(); repr(data); "
        "pickle.loads(pickle.dumps(data)); assert not {'torch', 'tensordict'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arrays_alone_need_no_torch(tmp_path):
    code = (
        "import sys, numpy as np; from windrow.protocol import DataProto; "
        "data = DataProto(non_tensor_batch={'a': np.arange(4)}); "
        f"data[1:].save({str(tmp_path / 'kept')!r}); assert len(DataProto.load({str(tmp_path / 'kept')!r})) == 3; "
        "data.repeat(2).group_by('a'); assert not {'torch', 'tensordict'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_nothing_at_all_is_a_batch_of_no_rows():
    data = DataProto()
    assert (len(data), data.batch, data.non_tensor_batch, data.meta_info) == (0, None, {}, {})


def test_each_object_has_its_own_containers():
    meta, arrays = {"a": 1}, {"x": np.arange(2)}
    data = DataProto(non_tensor_batch=arrays, meta_info=meta)
    data.meta_info["b"] = 2
    data.non_tensor_batch["y"] = np.arange(2)
    assert (meta, [*arrays]) == ({"a": 1}, ["x"])


def test_columns_of_both_kinds_are_sorted_out_by_type():
    data = DataProto.from_single_dict({"a": torch.zeros(2, 3), "b": np.array(["x", "y"])}, meta_info={"step": 1})
    assert data.batch is not None
    assert [*data.batch.keys()] == ["a"]
    assert [*data.non_tensor_batch] == ["b"]
    assert data.meta_info == {"step": 1}


def test_a_list_becomes_one_object_per_row():
    data = DataProto.from_dict(non_tensors={"messages": [[1, 2], [3, 4]]})
    assert data["messages"].shape == (2,)
    assert data["messages"].dtype == object
    assert data[1].non_tensor_batch["messages"] == [3, 4]


Untyped: Any = DataProto  # what a type checker would not let through


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Untyped.from_dict, "from_dict got no columns; for meta information alone use"),
        (lambda: Untyped.from_dict(tensors={}, non_tensors={}), "from_dict got no columns"),
        (lambda: Untyped.from_single_dict({}), "from_single_dict got no columns"),
        (lambda: Untyped.from_single_dict({"a": [1]}), "column a must be a tensor or a numpy array, got list"),
        (lambda: Untyped.from_dict(tensors={"a": np.zeros(2)}), "column a must be a tensor, got ndarray"),
        (lambda: Untyped.from_dict(non_tensors={"a": 3}), "column a must be a numpy array or a list, got int"),
        (lambda: Untyped.from_dict(non_tensors={"a": "xyz"}), "column a must be a numpy array or a list, got str"),
        (lambda: Untyped.from_dict(tensors={"": torch.zeros(2)}), "the name of a column must be a string"),
        (lambda: Untyped.from_dict(tensors={"a": torch.tensor(1)}), "column a is a single value, not one per row"),
        (
            lambda: Untyped.from_dict(tensors={"a": torch.zeros(2), "b": torch.zeros(3)}),
            "column b has 3 rows but column a has 2; all columns need the same number",
        ),
        (
            lambda: Untyped.from_dict(tensors={"a": torch.zeros(2)}, non_tensors={"b": np.zeros(3)}),
            "column b has 3 rows but column a has 2",
        ),
        (
            lambda: Untyped.from_dict(tensors={"a": torch.zeros(2)}, non_tensors={"a": np.zeros(2)}),
            "column a is in batch and in non_tensor_batch; rename one of them",
        ),
        (lambda: Untyped({"a": torch.zeros(2)}), "batch must be a TensorDict or None, got dict; use DataProto.from"),
        (lambda: Untyped(TensorDict({}, batch_size=[])), "batch_size must be the number of rows, got ()"),
        (lambda: Untyped(TensorDict({}, batch_size=[2, 2])), "batch_size must be the number of rows, got (2, 2)"),
        (
            lambda: Untyped(TensorDict({"a": TensorDict({}, batch_size=[2])}, batch_size=[2])),
            "column a of batch must be a tensor, got TensorDict; nothing is nested",
        ),
        (
            lambda: Untyped(TensorDict({}, batch_size=[2]), {"a": np.zeros(3)}),
            "batch says it has 2 rows but its columns have 3",
        ),
        (lambda: Untyped(non_tensor_batch={"a": [1, 2]}), "column a of non_tensor_batch must be a numpy array"),
        (lambda: Untyped(non_tensor_batch={"a": np.array(1)}), "column a is a single value"),
        (lambda: Untyped(non_tensor_batch={3: np.zeros(1)}), "must be a string that is not empty, got 3"),
    ],
)
def test_what_does_not_fit_is_refused(make, words: str):
    with refused(words):
        make()


def test_a_data_error_is_ours_and_a_value_error():
    assert issubclass(DataError, WindrowError)
    assert issubclass(DataError, ValueError)


def test_a_column_that_was_put_in_wrong_is_found_by_the_check():
    data = proto(3)
    data.non_tensor_batch["late"] = np.zeros(2)
    with pytest.raises(DataError, match="column late has 2 rows but column number has 3"):
        data.check_consistency()


def test_it_says_what_is_in_it():
    assert repr(proto(2, step=1)) == (
        "DataProto(2 rows; batch: number int64 (2,), vector float32 (2, 2); "
        "non_tensor_batch: text object (2,), half float64 (2,); meta_info: step)"
    )
    assert repr(DataProto()) == "DataProto(0 rows)"


def test_a_pickled_copy_is_equal():
    data = proto(3, step=1)
    assert equal(pickle.loads(pickle.dumps(data)), data)  # noqa: S301  # our own


def test_a_clone_shares_nothing():
    data = proto(2, nested={"a": [1]})
    copy = data.clone()
    copy["number"][0] = 9
    copy["half"][0] = 9
    copy.meta_info["nested"]["a"].append(2)
    assert equal(data, proto(2, nested={"a": [1]}))


def test_moving_happens_in_place():
    data = proto(2)
    assert data.to("meta") is data
    assert str(data["number"].device) == "meta"
    assert data["half"].tolist() == [0.0, 0.5]
