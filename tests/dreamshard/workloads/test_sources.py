import itertools
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dreamshard.workloads import (
    Lookups,
    WorkloadConfig,
    call,
    change_token,
    is_function,
    known_as,
    open_workload,
    statistics,
)
from dreamshard.workloads.lookups import write_lookups
from dreamshard.workloads.table_list import list_tables
from dreamshard.workloads.workload import bundled_lists
from tests.helpers.lookups import drawn

LIST = "name,rows,dim,pooling_factor\nuser,100,32,2\nitem/x,10,64,1\nshop,1000,8,3\n"


@pytest.fixture
def bucket():
    memory = fsspec.filesystem("memory")
    yield "memory://bucket/tables"
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def recorded(path: Path, samples: list[list[int]]) -> None:
    offsets = torch.tensor([0, *itertools.accumulate(map(len, samples))])
    rows = torch.tensor(list(itertools.chain(*samples)), dtype=torch.int32)
    write_lookups(path, Lookups(rows, offsets))


def make_folder(folder: Path, listed: str = LIST) -> str:
    """A list of three tables, lookups of the second recorded."""
    folder.mkdir()
    (folder / "tables.csv").write_text(listed)
    recorded(folder / "item%2Fx.parquet", [[1, 2], [], [7]])
    return str(folder)


def opened(source: str, **changes):
    return open_workload(WorkloadConfig(source=source, **{"dim": None, "batch_size": 64, **changes}))


def read_source(source: str, **changes) -> dict[str, tuple]:
    return {
        table.name: (table.rows, table.dim, lookups.indices.tolist(), lookups.offsets.tolist())
        for table, lookups in drawn(opened(source, **changes))
    }


def prints(source: str, **changes) -> dict[str, str]:
    workload = opened(source, **changes)
    return {table.name: workload.fingerprint(t) for t, table in enumerate(workload.listed)}


def uploaded(folder: str, bucket: str) -> str:
    fsspec.filesystem("memory").put(f"{folder}/", f"{bucket}/", recursive=True)
    return bucket


@pytest.mark.parametrize(
    ("spelt", "known"),
    [
        *((spelt, "{}/tables.csv") for spelt in ("tables/../tables.csv", "~/tables.csv", " tables.csv ")),
        ("tables/", "{}/tables"),
        ("s3://Bucket/tables/", "s3://Bucket/tables"),
        ("mlperf-dlrm-dcnv2", "mlperf-dlrm-dcnv2"),
        ("./mlperf-dlrm-dcnv2", "{}/mlperf-dlrm-dcnv2"),
        ("model.py:make", "{}/model.py:make"),
        ("package.model:make", "package.model:make"),
    ],
)
def test_a_source_is_known_by_one_spelling(tmp_path, monkeypatch, spelt, known):
    (tmp_path / "tables").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert known_as(spelt) == known.format(tmp_path)


def test_bundled_lists_are_read_and_metas_has_its_totals():
    metas = {name: list_tables(file) for name, file in bundled_lists().items()}["meta-production-2026"]
    assert (len(metas), sum(table.rows for table in metas) // 10**8) == (1935, 26)
    whole, part = read_source("nvidia-synthetic-tiny"), read_source("nvidia-synthetic-tiny", num_tables=5)
    assert len(part) == 5
    assert part.items() <= whole.items(), "a subset keeps its lookups"


def test_a_list_of_ones_own_is_looked_up_as_often_as_it_says(tmp_path):
    (tmp_path / "t.csv").write_text("name,rows,dim,pooling_factor\nuser,100,8,1.5\nitem,5,6,0\n")
    user, item = (statistics(*table) for table in drawn(opened(str(tmp_path / "t.csv"))))
    assert (user.names[0], float(user.pooling_factor), int(user.dim)) == ("user", 1.5, 8)
    assert (int(item.lookups), int(item.dim)) == (0, 8)
    assert {dim for _, dim, *_ in read_source(str(tmp_path / "t.csv"), dim=32).values()} == {32}


def test_a_bucket_gives_the_same_as_a_folder_and_keeps_no_copies(tmp_path, bucket, monkeypatch):
    folder = make_folder(tmp_path / "f")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    assert read_source(uploaded(folder, bucket)) == (tables := read_source(folder))
    assert tables["item/x"] == (10, 64, [1, 2, 7], [0, 2, 2, 3]), "recorded"
    assert tables["user"][3] == [0, 2, 4, 6], "generated"
    assert list(tables) == ["user", "item/x", "shop"]
    fsspec.filesystem("memory").pipe("/bucket/tables/bad.csv", LIST.replace("1000", "-1").encode())
    with pytest.raises(ValueError):
        read_source(f"{bucket}/bad.csv")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_of_several_data_files_the_newest_by_name_is_read(tmp_path):
    for day, row in ((9, 3), (10, 5)):
        lookups = torch.tensor([row]), torch.tensor([0, 1]), torch.tensor([[1]])
        torch.save(lookups, tmp_path / f"d{day}.pt")
    assert read_source(str(tmp_path))["t0000"][2] == [5]
    (note,) = open_workload(WorkloadConfig(source=str(tmp_path), batch_size=1)).notes
    assert ("16 columns" in note, "d10.tables.csv" in note) == (True, True)


@pytest.mark.parametrize("dim", [None, "mixed"])
def test_a_table_is_unchanged_when_others_come_go_or_move(tmp_path, dim):
    header, user, _, shop = LIST.splitlines()
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text(LIST)
    after.write_text("\n".join([header, shop, "new,50,16,2", user]) + "\n")
    old, new = read_source(str(before), dim=dim), read_source(str(after), dim=dim)
    for name in ("user", "shop"):
        assert new[name] == old[name]
        assert prints(str(after), dim=dim)[name] == prints(str(before), dim=dim)[name]
    assert old["user"][2] != old["shop"][2]


@pytest.mark.parametrize("remote", [False, True])
def test_a_fingerprint_changes_with_its_own_table_alone(tmp_path, bucket, remote):
    def now() -> tuple[dict[str, str], str]:
        source = uploaded(folder, bucket) if remote else folder
        return prints(source), change_token(source)

    folder = make_folder(tmp_path / "f")
    first, token = now()
    (tmp_path / "f" / "tables.csv").write_text(LIST.replace("shop,1000", "shop,2000"))
    second, _ = now()
    assert first["shop"] != second["shop"]
    assert first["user"] == second["user"]
    recorded(tmp_path / "f" / "item%2Fx.parquet", [[1, 2], [], [8]])
    third, last = now()
    assert third["item/x"] != second["item/x"]
    assert (third["user"], third["shop"]) == (second["user"], second["shop"])
    assert token != last


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["tables.csv", "tables.json"], "tables.csv and tables.json"),
        (["notes.txt"], "notes.txt"),
        (["tables.csv", "user.parquet", "itm.parquet"], r"itm\.parquet.*item%2Fx\.parquet"),
    ],
)
def test_a_folder_of_neither_layout_is_refused(tmp_path, files, named):
    for name in files:
        (tmp_path / name).write_text(LIST)
    with pytest.raises(ValueError, match=named):
        read_source(str(tmp_path))


@pytest.mark.parametrize("source", ["clicks.log", "train.parquet", "nonsense"])
def test_a_file_that_is_no_source_is_refused(tmp_path, source):
    (tmp_path / "clicks.log").write_text("x")
    pq.write_table(pa.table({"label": [0], "C1": [3]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError):
        read_source(str(tmp_path / source))


def test_functions_are_told_from_files_and_addresses():
    assert all(map(is_function, ("model.py:make_model", "/a b/model.py:make", "package.model:make")))
    assert not any(map(is_function, ("tables.csv", "s3://bucket/tables/", "model.py", "model.py:", "meta-dlrm-2021")))


def written(folder: Path, text: str, name: str = "made_here.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_functions_of_modules_and_of_files_are_called(tmp_path):
    written(tmp_path, "VALUE = 7\n", "made_here_neighbour.py")
    file = written(tmp_path, "from made_here_neighbour import VALUE\ndef make(): return VALUE\n")
    assert call(f"{file}:make", "there is no model") == 7
    assert call("platform:python_version", "there is no model").startswith("3.")
    (tmp_path / "other").mkdir()
    of_the_same_name = written(tmp_path / "other", "def make(): return 2\n")
    assert call(f"{of_the_same_name}:make", "there is no model") == 2


@pytest.mark.parametrize("text", ["def other(): pass\n", "def make(): raise KeyError('rows')\n", None])
def test_what_is_wrong_with_a_function_is_one_sentence(tmp_path, text):
    file = tmp_path / "absent.py" if text is None else written(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        call(f"{file}:make", "there is no model")
    assert "\n" not in str(caught.value)
