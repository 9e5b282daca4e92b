"""The lake on addresses: the cases of the local lake again, in memory and on an S3 server, and what is only there."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from storage import notebook
from storage.lake import catalog
from storage.settings import Settings
from storage.store import open_store

# the same cases, for the lake of this module's `settings`
from tests.storage.lake.test_catalog import (  # noqa: F401
    filled,
    test_a_damaged_file_of_the_lake_is_named_in_one_sentence,
    test_a_query_of_one_testbed_opens_only_its_files,
    test_a_sample_is_one_row_and_each_of_its_devices_is_one,
    test_placements_name_the_device_of_every_table,
)
from tests.storage.lake.test_lake import (  # noqa: F401
    test_a_repeated_evaluation_replaces_the_one_before,
    test_datasets_that_share_a_table_share_its_lookups,
    test_exchanges_come_back_as_they_were_measured,
    test_samples_come_back_bit_for_bit_in_order,
    test_tables_come_back_bit_for_bit_in_their_order,
    test_tasks_come_back_as_they_were_drawn,
    test_the_dataset_ingested_last_is_the_newest,
    test_the_same_samples_again_add_nothing_even_among_new_ones,
    test_writers_of_one_run_at_the_same_time_lose_nothing,
)
from tests.storage.lake.test_sample_buffer import (  # noqa: F401
    test_samples_kept_one_by_one_are_one_file_of_the_lake,
)


@pytest.fixture(params=["memory", "s3"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home on this machine and a store of its own elsewhere."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3_environment").items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DREAMSHARD_STORE", f"{request.param}://team/{uuid4().hex}/o'neil & co")
    return open_store()


on_s3 = pytest.mark.parametrize("settings", ["s3"], indirect=True)


@on_s3
def test_the_catalog_file_opens_in_another_process(settings: Settings, filled: None):  # noqa: F811
    catalog.write_catalog(settings)
    assert len(notebook.view("cost_samples", home=str(settings.store_root))) == 2
    reader = (
        "import sys, duckdb, fsspec; c = duckdb.connect(sys.argv[1], read_only=True); "
        "c.register_filesystem(fsspec.filesystem('s3')); print(c.sql('select count(*) from cost_samples').fetchall())"
    )
    done = subprocess.run([sys.executable, "-c", reader, str(settings.catalog_path)], capture_output=True, text=True)
    assert done.stdout == "[(2,)]\n", done.stderr
