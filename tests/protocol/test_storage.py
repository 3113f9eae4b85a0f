"""A DataProto in a folder: whole or absent, exact, without pickle."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.protocol.given import equal, proto, refused

from windrow.protocol import DataProto

torch = pytest.importorskip("torch")

DTYPES = [
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
]


def test_every_kind_of_column_comes_back(tmp_path: Path):
    data = DataProto.from_dict(
        tensors={str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES},
        non_tensors={
            "f": np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32),
            "big_endian": np.array([1, 2], ">i4"),
            "text": np.array(["ä", "longer"]),
            "when": np.array(["2024-01-01", "NaT"], "datetime64[D]"),
            "objects": [{"a": [1, None, True]}, "\ud800 lone"],
            "mixed": np.array([[1, 2.5], [None, float("nan")]], dtype=object),
        },
        meta_info={"step": 3, "metrics": {"loss": float("nan"), "rate": 0.1}, "list": [1, [2]], "none": None},
    )
    data.save(tmp_path / "a" / "kept")
    assert equal(DataProto.load(str(tmp_path / "a" / "kept")), data)


@pytest.mark.parametrize("data", [DataProto(), DataProto(meta_info={"a": 1}), proto(0), proto(3).select([], [])])
def test_what_is_empty_comes_back_empty(data: DataProto, tmp_path: Path):
    data.save(tmp_path / "kept")
    assert equal(DataProto.load(tmp_path / "kept"), data)


arrays = hnp.arrays(
    hnp.scalar_dtypes(), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3).map(lambda shape: (2, *shape))
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.text(min_size=1).filter(lambda name: name != "__metadata__")


@given(
    columns=st.dictionaries(names, arrays, max_size=3), objects=st.lists(values, min_size=2, max_size=2), meta=values
)
def test_arrays_and_objects_of_any_kind_come_back_exactly(columns, objects, meta, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any") / "kept"
    data = DataProto.from_dict(non_tensors={**columns, "objects": objects}, meta_info={"entry": meta})
    data.save(folder)
    assert equal(DataProto.load(folder), data)


def test_views_and_columns_over_the_same_memory_are_saved_as_they_look(tmp_path: Path):
    base = torch.arange(12).reshape(3, 4)
    data = DataProto.from_dict(
        {"base": base, "again": base, "turned": base[:, :3].t(), "wide": base[:, :1].expand(3, 5)}
    )
    data[1:].save(tmp_path / "kept")
    assert equal(DataProto.load(tmp_path / "kept"), data[1:])


def test_scalars_of_numpy_come_back_as_the_numbers_they_equal(tmp_path: Path):
    DataProto(meta_info={"loss": np.float32(0.1), "n": np.int64(3)}).save(tmp_path / "kept")
    meta = DataProto.load(tmp_path / "kept").meta_info
    assert meta == {"loss": np.float32(0.1), "n": 3}
    assert [type(value) for value in meta.values()] == [float, int]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataProto(meta_info={"a": (1, 2)}), "meta_info a holds a tuple that JSON cannot give back, (1, 2); use lists"),
        (
            DataProto(meta_info={"a": {1: 2}}),
            "meta_info a holds a dict that JSON cannot give back, {1: 2}; use strings",
        ),
        (DataProto(meta_info={"a": [torch.zeros(1)]}), "meta_info a holds a Tensor that JSON cannot give back"),
        (DataProto.from_dict(non_tensors={"o": [object()]}), "column o holds a object that JSON cannot give back"),
        (
            DataProto(non_tensor_batch={"s": np.zeros(1, [("x", object)])}),
            "objects inside a structure cannot be saved; split it up",
        ),
        (DataProto.from_dict({"__metadata__": torch.zeros(1)}), "column __metadata__ cannot be saved"),
        (DataProto.from_dict({"c": torch.zeros(1, dtype=torch.complex128)}), "tensor that safetensors cannot hold"),
    ],
)
def test_what_would_not_come_back_is_refused_and_leaves_nothing(data: DataProto, words: str, tmp_path: Path):
    with refused(words):
        data.save(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path):
    folder = tmp_path / "kept"
    folder.mkdir()
    proto(1).save(folder)
    with refused("exists already; save to a new folder or remove it first"):
        proto(2).save(folder)
    assert len(DataProto.load(folder)) == 1
    (tmp_path / "file").touch()
    with refused("file exists already"):
        proto(2).save(tmp_path / "file")


def test_a_save_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", broken)
    with refused("kept cannot be written: No space left on device"):
        proto(2).save(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_batch_is_refused(tmp_path: Path):
    with refused(f"{tmp_path} holds no saved DataProto, there is no proto.json in it"):
        DataProto.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("proto.json", b"{", "is damaged"),
        ("proto.json", b"[]", "is not of the format windrow.DataProto 1"),
        ("proto.json", b'{"format": "windrow.DataProto", "version": 2}', "is not of the format windrow.DataProto 1"),
        ("proto.json", b'{"format": "windrow.DataProto", "version": 1}', "is damaged, it cannot be read: KeyError"),
        ("batch.safetensors", b"nonsense", "is damaged, it cannot be read"),
        ("array_1.npy", b"nonsense", "is damaged, it cannot be read"),
        ("array_1.npy", b"", "is damaged, it cannot be read"),
    ],
)
def test_a_damaged_folder_is_refused(file: str, content: bytes, words: str, tmp_path: Path):
    proto(2).save(tmp_path / "kept")
    (tmp_path / "kept" / file).write_bytes(content)
    with refused(words):
        DataProto.load(tmp_path / "kept")


def test_a_pickle_is_never_opened(tmp_path: Path):
    proto(2).save(tmp_path / "kept")
    np.save(tmp_path / "kept" / "array_1.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with refused("Object arrays cannot be loaded when allow_pickle=False"):
        DataProto.load(tmp_path / "kept")


def test_columns_are_named_in_order_where_people_can_read_it(tmp_path: Path):
    proto(2, step=1).save(tmp_path / "kept")
    index = json.loads((tmp_path / "kept" / "proto.json").read_text())
    assert index["batch"] == {"rows": 2, "columns": ["number", "vector"]}
    assert [entry["name"] for entry in index["arrays"]] == ["text", "half"]
    assert index["meta_info"] == {"step": 1}
