"""Content made by hand to fill memory, to hang a reader or to fill a disk: what chance does not find."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

PROTOCOL = b"\x80\x02"


def bombs() -> dict[str, tuple[str, Callable[[], bytes]]]:
    """By what each does: the name of its reader, and what makes it."""
    saved = "lookups as .pt"
    return {
        "a call that allocates": (saved, lambda: archive(_bytearray(3_000_000_000))),
        "a memo of a billion places": (saved, lambda: archive(PROTOCOL + b"K\x01r" + struct.pack("<I", 2**30) + b".")),
        "tuples in tuples as a key": (saved, lambda: archive(_tuples_as_key(60))),
        "a shape of huge numbers": (saved, lambda: archive(_tensor(pickle.dumps((2**2000,) * 20_000, 2)[2:-1]))),
        "a deflated pickle": (saved, lambda: archive(PROTOCOL + b"0" * (2**29 + 2**26) + b".", zipfile.ZIP_DEFLATED)),
        "a directory of any size": (saved, _long_directory),
        "millions of tables": (saved, _many_tables),
        "a long name a hundred thousand times": ("lists as Parquet", _repeated_name),
        "pages of gigabytes": ("lists as Parquet", _large_pages),
        "a list of missing values": ("lists as Parquet", _missing_values),
        "millions of empty objects": ("lists as JSON", lambda: b"[" + b",".join([b"{}"] * 20_000_000) + b"]"),
        "millions of keys": (
            "lists as JSON",
            lambda: b"[{" + b",".join(b'"%d":0' % i for i in range(4_500_000)) + b"}]",
        ),
        "merges of merges": ("constraints", _merges),
        "a number in base 60 with half a million digits": ("constraints", lambda: b"pin:\n  t0: 1" + b":1" * 524_000),
        "sixteen numbers in base 60": ("constraints", lambda: b"pin:\n" + (b"  t: 1" + b":1" * 32_000 + b"\n") * 16),
        "a text that is to be a number in base 60": (
            "hardware",
            lambda: b'memory_gb: !!int "1' + b":1" * 524_000 + b'"',
        ),
        "a thousand numbers for each of many tables": ("lists as CSV", _many_features),
        "numbers for each of many tables in texts": ("lists as JSON", _many_features_in_texts),
        "a million tensors": ("placers: weights", _many_tensors),
        "a quarter of a billion equal lookups": ("recorded lookups", _equal_lookups),
    }


def archive(pickled: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A file as of `torch.save` with the given pickle and no storages."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as target:
        target.writestr("archive/data.pkl", pickled)
        target.writestr("archive/version", "3\n")
    return sink.getvalue()


def _bytearray(size: int) -> bytes:
    return PROTOCOL + b"cbuiltins\nbytearray\n\x8a\x08" + struct.pack("<q", size) + b"\x85R."


def _tuples_as_key(levels: int) -> bytes:
    """`{(((...),...),(...)): 1}`, whose hash takes two to the power of `levels` steps."""
    doubled = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(levels))
    return PROTOCOL + b"})q\x00" + doubled + b"K\x01s."


def _tensor(shape: bytes) -> bytes:
    storage = b"(X\x07\x00\x00\x00storagectorch\nLongStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
    return PROTOCOL + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + shape + b"\x89}tR."


def _long_directory() -> bytes:
    """A list of two million entries."""
    entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    listed = entry * 2_000_000
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, len(listed), 0, 0)
    return listed + end


def _many_tables() -> bytes:
    sink = io.BytesIO()
    count = 4_000_000
    torch.save(
        (
            torch.zeros(0, dtype=torch.int64),
            torch.zeros(count + 1, dtype=torch.int32),
            torch.zeros((count, 1), dtype=torch.int32),
        ),
        sink,
    )
    return sink.getvalue()


def _parquet(columns: dict[str, pa.Array], **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def _of_tables(names: pa.Array) -> dict[str, pa.Array]:
    return {"name": names, "rows": pa.array([1] * len(names)), "dim": pa.array([4] * len(names))}


def _repeated_name() -> bytes:
    codes = pa.array([0] * 100_000, pa.int32())
    return _parquet(_of_tables(pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 60_000]))))


def _large_pages() -> bytes:
    names = pa.array(["x" * 20_000] * 60_000)
    return _parquet(_of_tables(names), use_dictionary=False, compression="zstd", data_page_size=2**30)


def _missing_values() -> bytes:
    count = 100_000_000
    return _parquet(_of_tables(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count, pa.int8()))))


def _equal_lookups() -> bytes:
    indices = pa.array(np.zeros(2**28, np.int32))
    return _parquet({"indices": pa.ListArray.from_arrays(pa.array([0, 2**28], pa.int32()), indices)})


def _merges() -> bytes:
    """YAML of 500 bytes, in which nine levels of nine merges make 400 million keys."""
    lines = [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)]
    return "\n".join(["a0: &a0 {x: 1, y: 2}", *lines]).encode()


def _many_features() -> bytes:
    lines = (f"t{i},1,4,{'1+' * 32_000}1" for i in range(900))
    return "\n".join(["name,rows,dim,lookups_per_sample_by_feature", *lines]).encode()


def _many_features_in_texts() -> bytes:
    one = '{"name":"t%d","rows":1,"dim":4,"lookups_per_sample_by_feature":"' + "1+" * 998 + '1"}'
    return ("[" + ",".join(one % i for i in range(32_000)) + "]").encode()


def _many_tensors() -> bytes:
    one = '"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(one % i for i in range(1_000_000)) + "}").encode()
    return struct.pack("<Q", len(header)) + header
