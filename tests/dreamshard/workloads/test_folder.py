import itertools
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch

from dreamshard.workloads import Lookups, WorkloadConfig, change_token, open_workload, write_lookups

LIST = "name,rows,dim,pooling_factor\nuser,100,32,2\nitem/x,10,64,1\nshop,1000,8,3\n"
RECORDED = [[1, 2], [], [7]]


@pytest.fixture
def bucket() -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    yield "memory://bucket/tables"
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def recorded(path: Path, samples: list[list[int]]) -> None:
    offsets = torch.tensor([0, *itertools.accumulate(map(len, samples))])
    write_lookups(
        path, Lookups(torch.tensor([row for sample in samples for row in sample], dtype=torch.int32), offsets)
    )


def make_folder(folder: Path, listed: str = LIST) -> str:
    """A list of three tables, lookups of the second recorded."""
    folder.mkdir()
    (folder / "tables.csv").write_text(listed)
    recorded(folder / "item%2Fx.parquet", RECORDED)
    return str(folder)


def config(source: str, **changes) -> WorkloadConfig:
    return WorkloadConfig(source=source, **{"dim": None, "batch_size": 64, **changes})


def found(source: str, **changes) -> dict[str, tuple]:
    return {
        table.name: (table.rows, table.dim, table.lookups.indices.tolist(), table.lookups.offsets.tolist())
        for table in open_workload(config(source, **changes)).tables()
    }


def prints(source: str, **changes) -> dict[str, str]:
    workload = open_workload(config(source, **changes))
    return {name: workload.fingerprint(t) for t, name in enumerate(workload.names)}


def uploaded(folder: str, bucket: str) -> str:
    fsspec.filesystem("memory").put(f"{folder}/", f"{bucket}/", recursive=True)
    return bucket


def test_recorded_lookups_are_read_and_the_others_are_generated_for_as_many_samples(tmp_path: Path):
    tables = found(make_folder(tmp_path / "f"))
    assert tables["item/x"] == (10, 64, [1, 2, 7], [0, 2, 2, 3])
    assert tables["user"][3] == [0, 2, 4, 6]
    assert list(tables) == ["user", "item/x", "shop"]


def test_a_bucket_gives_what_the_folder_gives_and_leaves_no_copies(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
):
    folder = make_folder(tmp_path / "f")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    assert found(uploaded(folder, bucket)) == found(folder)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_file_in_a_bucket_is_a_source_too_and_its_errors_name_it(tmp_path: Path, bucket: str):
    (tmp_path / "good.csv").write_text(LIST)
    (tmp_path / "bad.csv").write_text(LIST.replace("1000", "-1"))
    uploaded(str(tmp_path), bucket)
    assert list(found(f"{bucket}/good.csv")) == ["user", "item/x", "shop"]
    with pytest.raises(ValueError, match=f"^{bucket}/bad.csv, line 4 is wrong .rows: '-1'"):
        found(f"{bucket}/bad.csv")


def test_of_several_data_files_the_newest_by_name_is_read(tmp_path: Path):
    for day, row in ((9, 3), (10, 5)):
        torch.save(
            (torch.tensor([row]), torch.tensor([0, 1]), torch.ones(1, 1, dtype=torch.int64)), tmp_path / f"d{day}.pt"
        )
    assert found(str(tmp_path), dim=4)["t0000"][2] == [5]
    (tmp_path / "d10.tables.csv").write_text("name,rows,dim\nuser,100,32\n")
    assert found(str(tmp_path))["user"] == (100, 32, [5], [0, 1])


@pytest.mark.parametrize("dim", [None, "mixed"])
def test_a_table_stays_as_it_is_when_others_are_added_removed_or_reordered(tmp_path: Path, dim):
    header, user, _, shop = LIST.splitlines()
    before = make_folder(tmp_path / "before")
    after = make_folder(tmp_path / "after", "\n".join([header, shop, "new,50,16,2", user]) + "\n")
    for folder in ("before", "after"):
        (tmp_path / folder / "item%2Fx.parquet").unlink()
    old, new = found(before, dim=dim), found(after, dim=dim)
    for name in ("user", "shop"):
        assert new[name] == old[name]
        assert prints(after, dim=dim)[name] == prints(before, dim=dim)[name]
    assert old["user"][2] != old["shop"][2]


@pytest.mark.parametrize("remote", [False, True])
def test_a_fingerprint_changes_with_its_own_table_alone(tmp_path: Path, bucket: str, remote: bool):
    def now() -> dict[str, str]:
        return prints(uploaded(folder, bucket) if remote else folder)

    folder = make_folder(tmp_path / "f")
    first, first_mark = now(), change_token(bucket if remote else folder)
    (tmp_path / "f" / "tables.csv").write_text(LIST.replace("shop,1000", "shop,2000"))
    second = now()
    assert {name for name in first if first[name] != second[name]} >= {"shop"}
    assert first["user"] == second["user"]
    recorded(tmp_path / "f" / "item%2Fx.parquet", [[1, 2], [], [8]])
    third = now()
    assert third["item/x"] != first["item/x"]
    assert (third["user"], third["shop"]) == (second["user"], second["shop"])
    assert change_token(bucket if remote else folder) != first_mark


def test_of_a_data_file_a_fingerprint_is_of_its_tables_part(tmp_path: Path):
    def save(*rows: int) -> str:
        ones = torch.ones(len(rows), 1, dtype=torch.int64)
        torch.save((torch.tensor(rows), torch.arange(len(rows) + 1), ones), tmp_path / "d.pt")
        return str(tmp_path / "d.pt")

    first, second, third = prints(save(1, 2), dim=4), prints(save(1, 3), dim=4), prints(save(1, 3), dim=8)
    assert first["t0000"] == second["t0000"]
    assert first["t0001"] != second["t0001"]
    assert third["t0000"] != second["t0000"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tables.csv": LIST, "tables.json": "[]"}, "holds tables.csv and tables.json"),
        ({"notes.txt": "x"}, "holds neither a list of tables .* it holds notes.txt"),
        ({"tables.csv": LIST, "users.parquet": "x"}, "users.parquet, but no table of its list has that name"),
        ({"tables.csv": LIST, "user.parquet": "x"}, "user.parquet cannot be read as Parquet"),
    ],
)
def test_a_folder_of_neither_layout_is_refused(tmp_path: Path, files: dict[str, str], message: str):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        found(str(tmp_path))
