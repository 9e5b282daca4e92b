"""The lake as a query sees it."""

import threading
from concurrent.futures import ThreadPoolExecutor

from storage.lake.lake_files import SharedFile


def test_threads_that_share_a_file_each_read_where_they_sought(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(8)) * 1000)
    shared, sought = SharedFile(lambda: file.open("rb", buffering=0)), threading.Barrier(8)

    def read(place):
        shared.seek(place)
        sought.wait()
        return shared.read(8), shared.tell()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(8)))
    assert found == [(bytes((place + i) % 8 for i in range(8)), place + 8) for place in range(8)]
    shared.close()
