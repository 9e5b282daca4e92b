"""Hypothesis strategies for files that are well-formed and say something wrong: types, numbers, shapes, columns, keys.

`damage.py` breaks bytes, which seldom leaves a Parquet file or a saved tensor that its library still reads.
"""

import copy
import csv
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
import yaml
from hypothesis import reject

from tests.helpers.damaged_reading import Reader

Content = st.SearchStrategy[bytes]

_INTEGERS = st.integers() | st.sampled_from([0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**30])
_TEXTS = st.text(max_size=30) | st.sampled_from(["nan", "1e999", "1+30", "²", "\x00", "\x1b[2J", "x" * 3000])
_SCALARS = st.none() | st.booleans() | _INTEGERS | st.floats() | _TEXTS
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_ALIKE: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(), int: _INTEGERS, float: st.floats(), str: _TEXTS, list: st.lists(_VALUES, max_size=4),
    dict: st.dictionaries(st.text(max_size=8), _VALUES, max_size=4),
}  # fmt: skip
_CHANGES = st.integers(1, 3)


def wrong_content(reader: Reader) -> Content:
    """Files of a reader's format, each a valid one with one to three changes."""
    ending, valid = reader.ending, reader.valid
    if ending == ".json":
        return _trees([json.loads(each) for each in valid]).map(lambda tree: json.dumps(tree).encode())
    if ending == ".yaml":
        return _trees([yaml.safe_load(each) for each in valid]).map(_yaml)
    if ending in (".csv", ".tsv"):
        return _rows([each.decode() for each in valid], "," if ending == ".csv" else "\t")
    if ending == ".parquet":
        return _columns([pq.read_table(io.BytesIO(each)) for each in valid])
    if ending == ".pt":
        return _saved([torch.load(io.BytesIO(each)) for each in valid])
    if ending == ".pt.gz":
        return _saved([torch.load(io.BytesIO(gzip.decompress(each))) for each in valid]).map(gzip.compress)
    if ending == ".zip":
        return _checkpoints(valid[0])
    assert ending == ".safetensors", f"there is no strategy for {ending}"
    return _weights(valid[0])


@st.composite
def _trees(draw: st.DrawFn, trees: list[Any]) -> Any:
    root = [copy.deepcopy(draw(st.sampled_from(trees)))]
    for _ in range(draw(_CHANGES)):
        places = list(_places(root))
        parent, key = places[draw(st.integers(0, len(places) - 1))]
        kind = draw(st.sampled_from(("alike", "any", "without", "moved", "renamed")))
        if kind == "without" and parent is not root:
            del parent[key]
        elif kind == "moved":
            other, of = places[draw(st.integers(0, len(places) - 1))]
            parent[key] = copy.deepcopy(other[of])
        elif kind == "renamed" and isinstance(parent, dict):
            parent[draw(_TEXTS)] = parent.pop(key)
        else:
            parent[key] = draw(_ALIKE.get(type(parent[key]), _VALUES) if kind == "alike" else _VALUES)
    return root[0]


def _places(root: list[Any]) -> Any:
    """Every parent and key below `root`."""
    pending: list[Any] = [root]
    while pending:
        parent = pending.pop()
        for key in list(parent) if isinstance(parent, dict) else range(len(parent)):
            yield parent, key
            if isinstance(parent[key], dict | list):
                pending.append(parent[key])


def _yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


@st.composite
def _rows(draw: st.DrawFn, texts: list[str], delimiter: str) -> bytes:
    rows = list(csv.reader(io.StringIO(draw(st.sampled_from(texts))), delimiter=delimiter))
    for _ in range(draw(_CHANGES)):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        at = draw(st.integers(0, max(0, len(row) - 1)))
        kind = draw(st.sampled_from(("cell", "cell", "without", "more", "row")))
        if kind == "row":
            rows.append(draw(st.lists(_CELLS, max_size=len(row) + 1)))
        else:
            row[at : at + (kind != "more")] = [] if kind == "without" else [draw(_CELLS)]
    sink = io.StringIO()
    ends, quoting = (
        draw(st.sampled_from(["\n", "\r\n", "\r"])),
        draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
    )
    csv.writer(sink, delimiter=delimiter, lineterminator=ends, quoting=quoting).writerows(rows)
    return sink.getvalue().encode("utf-8", "surrogatepass")


_CELLS = _TEXTS | _INTEGERS.map(str) | st.floats().map(str) | st.lists(_INTEGERS.map(str), max_size=4).map("+".join)


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_ARROW: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *(
        (pa.int8(), _whole(8)),
        (pa.int32(), _whole(32)),
        (pa.int64(), _whole(64)),
        (pa.uint64(), st.integers(0, 2**64 - 1)),
    ),
    *((pa.float32(), st.floats(width=32)), (pa.float64(), st.floats()), (pa.bool_(), st.booleans())),
    *((pa.string(), st.text(max_size=30)), (pa.binary(), st.binary(max_size=30)), (pa.null(), st.none())),
    *((pa.date32(), st.dates()), (pa.timestamp("us"), st.datetimes()), (pa.timestamp("ns", "UTC"), _whole(64))),
    (pa.decimal128(38, 2), st.decimals(-(10**9), 10**9, places=2)),
]
_ARROW += [(pa.list_(kind), st.lists(st.none() | each, max_size=5)) for kind, each in _ARROW]
_ARROW += [(pa.struct({"a": kind}), st.fixed_dictionaries({"a": st.none() | each})) for kind, each in _ARROW[:8]]


@st.composite
def _checkpoints(draw: st.DrawFn, valid: bytes) -> bytes:
    """One of the files in it is changed, and none says which bits they should have."""
    with zipfile.ZipFile(io.BytesIO(valid)) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != "digests.json"}
    name = draw(st.sampled_from(sorted(files)))
    ending = Path(name).suffix
    files[name] = draw(wrong_content(Reader(name, ending, (files[name],), print)))
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for each, content in files.items():
            archive.writestr(each, content)
    return sink.getvalue()


@st.composite
def _columns(draw: st.DrawFn, tables: list[pa.Table]) -> bytes:
    table = draw(st.sampled_from(tables))
    for _ in range(draw(_CHANGES)):
        names = table.column_names
        if not names:
            break
        at = draw(st.integers(0, len(names) - 1))
        kind = draw(
            st.sampled_from(("values", "values", "values", "without", "renamed", "repeated", "cut", "metadata"))
        )
        if kind == "values":
            table = table.set_column(at, names[at], draw(_array(table.num_rows)))
        elif kind == "without":
            table = table.remove_column(at)
        elif kind == "renamed":
            table = table.rename_columns(
                [*names[:at], draw(st.sampled_from(names) | st.text(max_size=8)), *names[at + 1 :]]
            )
        elif kind == "repeated":
            table = pa.concat_tables([table] * draw(st.integers(2, 4)))
        elif kind == "cut":
            table = table.slice(0, draw(st.integers(0, table.num_rows)))
        else:
            known = sorted(table.schema.metadata or {}) or [b"a"]
            table = table.replace_schema_metadata({draw(st.sampled_from(known)): draw(st.binary(max_size=30))})
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink)
    except (pa.ArrowException, ValueError):
        reject()  # Parquet has no such columns
    return sink.getvalue()


@st.composite
def _array(draw: st.DrawFn, length: int) -> pa.Array:
    kind, values = draw(st.sampled_from(_ARROW))
    array = pa.array(draw(st.lists(st.none() | values, min_size=length, max_size=length)), kind)
    encodes = not pa.types.is_nested(kind) and not pa.types.is_null(kind) and draw(st.booleans())
    return array.dictionary_encode() if encodes else array


_DTYPES = st.sampled_from([
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
])  # fmt: skip


@st.composite
def _tensors(draw: st.DrawFn, former: torch.Tensor) -> torch.Tensor:
    """Another type or shape, or other values."""
    shape = draw(st.just(list(former.shape)) | st.lists(st.integers(0, 6), max_size=3))
    dtype = draw(st.just(former.dtype) | _DTYPES)
    filled = torch.full(shape, draw(st.sampled_from([0, 1, 2, 5, 100])), dtype=dtype)
    if filled.numel() and draw(st.booleans()):
        value = draw(_whole(64) | st.sampled_from([-1, 2**31, 2**40]) | st.floats(allow_nan=True))
        try:
            filled.view(-1)[draw(st.integers(0, filled.numel() - 1))] = value
        except (RuntimeError, OverflowError, ValueError):
            reject()  # the type has no such number
    return filled.t() if filled.dim() == 2 and draw(st.booleans()) else filled


@st.composite
def _saved(draw: st.DrawFn, contents: list[Any]) -> bytes:
    parts = list(draw(st.sampled_from(contents)))
    for _ in range(draw(_CHANGES)):
        at = draw(st.integers(0, max(0, len(parts) - 1)))
        kind = draw(st.sampled_from(("tensor", "tensor", "tensor", "alien", "without", "more")))
        former = parts[at] if parts and isinstance(parts[at], torch.Tensor) else torch.tensor([1])
        changed = draw(_VALUES if kind == "alien" else _tensors(former))
        parts[at : at + (kind != "more")] = [] if kind == "without" else [changed]
    whole = draw(st.sampled_from((tuple, list, lambda each: dict(enumerate(each)), lambda each: [tuple(each)])))(parts)
    sink = io.BytesIO()
    torch.save(whole, sink)
    return sink.getvalue()


@st.composite
def _weights(draw: st.DrawFn, valid: bytes) -> bytes:
    tensors = dict(safetensors.torch.load(valid))
    for _ in range(draw(_CHANGES)):
        name = draw(st.sampled_from(sorted(tensors)))
        kind = draw(st.sampled_from(("tensor", "without", "renamed")))
        former = tensors.pop(name)
        if kind != "without":
            tensors[name if kind == "tensor" else draw(st.text(max_size=30))] = (
                draw(_tensors(former)).contiguous() if kind == "tensor" else former
            )
    return safetensors.torch.save(tensors)
