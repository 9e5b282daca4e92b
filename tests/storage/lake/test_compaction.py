"""Compaction: fewer files, the same samples to every reader at any moment, also after a kill."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dreamshard.tasks import PlacementTask
from storage.filesystem import parse_address
from storage.lake import Lake, catalog, compaction, readers, schemas
from storage.lake.merged_samples import is_merged
from storage.settings import Settings
from tests.helpers.lake import append_samples
from tests.helpers.many_samples import write_sample_files
from tests.helpers.samples import make_sample

COUNTS = "select count(*) as n, count(distinct sample_id) as samples from cost_samples"
FILES = 60


def counted(settings: Settings) -> tuple[int, int]:
    [row] = catalog.query(settings, COUNTS)
    return row["n"], row["samples"]


def test_many_small_files_become_one_with_the_same_rows(settings: Settings, lake: Lake):
    folder = write_sample_files(lake, FILES)
    before = catalog.query(settings, "select * from device_costs order by sample_id, device")
    samples = [sample.placement.device.tolist() for sample in lake.read_cost_samples("run3")]
    [done] = compaction.compact(lake)
    assert (done.files_before, done.files_after) == (FILES, 1)
    [file] = folder.iterdir()
    assert pq.read_schema(file).equals(schemas.MEASUREMENTS)
    assert catalog.query(settings, "select * from device_costs order by sample_id, device") == before
    assert [sample.placement.device.tolist() for sample in lake.read_cost_samples("run3")] == samples
    assert len(samples) == 10
    assert len(lake.read_cost_samples()) == FILES
    assert lake.read_cost_samples("run") == []
    assert not list((lake.root / compaction.STAGING).rglob("*.parquet"))
    assert compaction.compact(lake) == [], "one file is not merged again"


def test_large_files_stay_as_they_are(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    folder = write_sample_files(lake, 4)
    large, *small = sorted(folder.iterdir())
    monkeypatch.setattr(compaction, "SMALL_BYTES", max(path.stat().st_size for path in small) + 1)
    with large.open("ab") as file:
        file.write(b" " * 100)  # behind the footer: only its size is looked at
    inode = large.stat().st_ino
    [done] = compaction.compact(lake)
    assert (done.files_before, done.files_after) == (4, 2)
    assert large.stat().st_ino == inode
    assert not any(path.exists() for path in small)


def test_a_sample_in_a_merged_file_is_not_written_again(lake: Lake, version: str, task: PlacementTask):
    first, second = (make_sample(task, [0, device, 1]) for device in (0, 1))
    append_samples(lake, [first], "run", 1, version)
    append_samples(lake, [second], "run", 2, version)
    compaction.compact(lake)
    append_samples(lake, [first], "run", 1, version)
    append_samples(lake, [second], "run", 3, version)
    assert len(list(lake.root.glob("cost_samples/*/*/*.parquet"))) == 2, "the same sample is new in another iteration"
    assert [path for path in lake.root.glob("cost_samples/*/*/*") if is_merged(path)]


def test_readers_and_writers_meanwhile_see_every_sample_once(
    settings: Settings, lake: Lake, version: str, task: PlacementTask
):
    write_sample_files(lake, 20)
    seen: list[tuple[int, int]] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def read():
        while not ended.is_set():
            try:
                seen.append(counted(settings))
                assert len(lake.read_cost_samples("run1")) == 10
            except Exception as error:  # noqa: BLE001 - shown below
                errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(4):
        append_samples(lake, [make_sample(task, [0, 1, 0], ms=1.0 + i)], "live", i, version)
        compaction.compact(lake)
    ended.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(rows == samples for rows, samples in seen), "none twice"
    assert all(20 <= rows <= 24 for rows, _ in seen), "none missing"
    assert counted(settings) == (24, 24)


COMPACT = """
import sys
from pathlib import Path
from storage.filesystem import parse_address
from storage.lake import Lake, compaction
lake = Lake(parse_address(sys.argv[1], "the test"), Path(sys.argv[1], "cache"))
step = getattr(compaction, sys.argv[2])
def stop(*arguments):
    if sys.argv[3] == "after":
        step(*arguments)
    print("there", flush=True)
    sys.stdin.read()
setattr(compaction, sys.argv[2], stop)
compaction.compact(lake)
"""


@pytest.mark.parametrize(("step", "when"), [("write_parquet", "after"), ("_exchange", "after")])
def test_a_killed_compaction_loses_nothing_and_the_next_completes_it(
    settings: Settings, lake: Lake, step: str, when: str
):
    folder = write_sample_files(lake, 20)
    command = [sys.executable, "-c", COMPACT, str(lake.root), step, when]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
    assert counted(settings) == (20, 20)
    assert len(lake.read_cost_samples()) == 20
    compaction.compact(lake)
    assert counted(settings) == (20, 20)
    assert len(list(folder.iterdir())) == 1
    assert list((lake.root / compaction.STAGING).rglob("*.parquet")) == []


def test_a_compaction_waits_for_readers_and_says_when_they_never_pause(lake: Lake):
    folder = write_sample_files(lake, 3)
    with readers.reading(lake.root), pytest.raises(ValueError, match=r"read without a pause for 0\.1 s"):
        compaction.compact(lake, wait_s=0.1)
    assert len(list(folder.iterdir())) == 3
    assert compaction.compact(lake)[0].files_after == 1


def test_a_damaged_file_stops_it_before_anything_changes(lake: Lake):
    folder = write_sample_files(lake, 3)
    min(folder.iterdir()).write_bytes(b"PAR1 is not all PAR1")
    with pytest.raises(ValueError, match="stay as they are"):
        compaction.compact(lake)
    assert len(list(folder.iterdir())) == 3


def test_a_page_that_a_disk_changed_is_not_merged_into_a_file_with_a_new_checksum(lake: Lake):
    folder = write_sample_files(lake, 3)
    first = min(folder.iterdir())
    group = pq.read_metadata(first).row_group(0)
    [costs] = (each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == "overall_ms")
    content = bytearray(first.read_bytes())
    content[costs.dictionary_page_offset + costs.total_compressed_size - 1] ^= 1  # of its data page, the last one
    first.write_bytes(content)
    with pytest.raises(ValueError, match="CRC checksum verification failed"):
        compaction.compact(lake)
    assert len(list(folder.iterdir())) == 3


def test_a_bucket_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="in a bucket"):
        compaction.compact(Lake(parse_address("memory://bucket/lake", "the test"), tmp_path))
