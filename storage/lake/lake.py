"""The lake: Parquet datasets, append-only, each file written atomically and named by its content.

    lookups/<content>.parquet                                          one table's batch, shared by datasets
    tables/dataset_version=<v>/tables.parquet                          one row per table
    tasks/dataset_version=<v>/split=<s>/<task set>.parquet             one row per task
    cost_samples/testbed=<t>/dataset_version=<v>/<run>.<iteration>.<content>.parquet      one row per device
    journal/...                                                        samples of an iteration that is not complete
    shard_costs/hardware=<h>/<key>.<repeats>.parquet                   one row: a shard measured by itself
    evaluations/testbed=<t>/dataset_version=<v>/<run>.parquet                             one row per placer and task

Whoever writes the same content again adds nothing, and an evaluation made again takes the place of the one before. A
killed writer leaves at most a `.tmp` file, which no reader looks at. Queries belong in `catalog`.

The root may lie elsewhere (`places`). Locks then hold on this host only, and hosts that write at once corrupt nothing:
the same content has the same name, and different runs have different names. Two hosts that do the same run at once may
keep a sample in two files; readers count it once, by its id.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from dreamshard.costs import CostSample
from dreamshard.evaluation import EvaluationRow
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask
from dreamshard.workloads import LookupFiles, WorkloadTable, dataset_version, statistics, write_lookups
from storage.filesystem import Place, files, upload
from storage.lake import rows as records
from storage.lake import schemas
from storage.lake.parquet_files import content_id, exclusive, partition, read, read_all, write
from storage.lake.rows import Row

EVALUATION = 0
"""In place of the training's iteration: measured by an evaluation, whose key is the `run_key`."""


@dataclass(frozen=True)
class Lake:
    """Everything that was ingested and measured, below one folder.

    Attributes:
        root: the folder, here or elsewhere.
        local: folder of this machine for locks and copies of lookups, used where the root is on another machine; it may
            be removed while nothing runs.
    """

    root: Place
    local: Path

    @contextmanager
    def one_writer(self, dataset: str) -> Iterator[None]:
        """Let one process of this machine at a time change what it has read of a dataset; readers do not wait."""
        folder = self.root / dataset
        if not isinstance(folder, Path):
            folder = self.local / "locks" / quote(str(folder), safe="")
        with exclusive(folder):
            yield

    def write_table_lookups(self, table: WorkloadTable, described: Tables | None = None) -> Place:
        """Keep the lookups of one table, unless they are there; datasets that share the table share the file.

        Args:
            table: with its batch of lookups.
            described: `statistics(table)` if it is at hand, which saves counting twice.

        Returns:
            The file, named by the content of `described`.
        """
        path = self.root / lookups_file(statistics(table) if described is None else described)
        if not path.exists():
            local = path if isinstance(path, Path) else self.local / "lookups" / path.name
            local.parent.mkdir(parents=True, exist_ok=True)
            write_lookups(local, table.lookups)
            if not isinstance(path, Path):
                upload(local, path)  # the copy stays: ranks of this host read it
        return path

    def lookup_source(self, version: str, batch_size: int | None = None) -> LookupFiles:
        """Lookups of the tables of dataset `version` by name; picklable, reads a file when asked for its table.

        Args:
            batch_size: take the first so many samples, or None for all.

        Raises:
            ValueError: there is no such dataset.
        """
        found = self._dataset(version)
        pairs = zip(found.column("name").to_pylist(), found.column("lookups_file").to_pylist(), strict=True)
        root = self.root
        if isinstance(root, Path):
            return LookupFiles({name: root / file for name, file in pairs}, batch_size)
        return LookupFiles({name: str(root / file) for name, file in pairs}, batch_size, self.local / "lookups")

    def write_dataset(self, tables: Tables, version: str, source: str) -> Place:
        """Keep the tables of a dataset; one that is there counts as written last from now on.

        Args:
            version: `dataset_version(tables)`.
            source: where the tables come from, for people.

        Raises:
            ValueError: `version` is not the content hash of `tables`.
        """
        if version != dataset_version(tables):
            raise ValueError(
                f"dataset {version!r} is not the version of these {len(tables)} tables ({dataset_version(tables)}), so "
                "other tables would be read under that name; pass dataset_version(tables)"
            )
        path = self._dataset_path(version)
        if version not in self.dataset_versions()[-1:]:
            lookups = [lookups_file(tables.select([t])) for t in range(len(tables))]
            write(path, records.tables_to_rows(tables, version, source, lookups))
        return path

    def read_dataset(self, version: str) -> Tables:
        """The tables of dataset `version`.

        Raises:
            ValueError: there is no such dataset, or its file cannot be read.
        """
        return records.tables_from_rows(self._dataset(version))

    def dataset_source(self, version: str) -> str:
        """Where the tables of a dataset came from when they were ingested last: what `write_dataset` was told.

        Raises:
            ValueError: there is no such dataset, or its file cannot be read.
        """
        return str(self._dataset(version).column("source")[0].as_py())

    def dataset_versions(self) -> list[str]:
        """Versions of all datasets, the one written last at the end."""
        paths = files(self.root / "tables", "dataset_version=*/tables.parquet")
        found = [table.slice(0, 1).to_pylist()[0] for table in read_all(paths, ["dataset_version", "created_at"])]
        return [row["dataset_version"] for row in sorted(found, key=lambda row: row["created_at"])]

    def write_tasks(
        self,
        tasks: Sequence[PlacementTask],
        dataset_version: str,
        split: str,
        key: str | None = None,
        seed: int | None = None,
    ) -> str:
        """Keep tasks of a dataset, unless they are there.

        Args:
            split: `train` or `test`.
            key: names the tasks drawn together; by default the hash of their content.
            seed: with which they were drawn, for people.

        Returns:
            The key.

        Raises:
            ValueError: other tasks lie under that key.
        """
        rows = [records.task_to_row(task) for task in tasks]
        chosen = content_id(rows) if key is None else key
        path = self._tasks_path(dataset_version, split, chosen)
        where = {"dataset_version": dataset_version, "split": split, "task_set": chosen, "seed": seed}
        stamp = {"created_at": records.now()}
        if not path.exists():
            full = [where | stamp | row | {"position": i} for i, row in enumerate(rows)]
            write(path, pa.Table.from_pylist(full, schema=schemas.TASKS))
        elif read(path, list(rows[0])).to_pylist() != rows:
            raise ValueError(
                f"{path} holds other tasks than these {len(rows)} of the same key {chosen!r}, and a key must mean "
                "the same tasks for good; give them another key"
            )
        return chosen

    def read_tasks(self, dataset_version: str, split: str, key: str) -> list[PlacementTask]:
        """The tasks of one key, in the order in which they were drawn.

        Raises:
            ValueError: there are none; the message lists the keys there are.
        """
        path = self._tasks_path(dataset_version, split, key)
        if not path.exists():
            known = [file.stem for file in files(path.parent, "*.parquet")]
            raise ValueError(
                f"there are no {split} tasks {key!r} of dataset {dataset_version}, so there is nothing to place; draw "
                f"them first, or use one of {known}"
            )
        pool = self.read_dataset(dataset_version)
        rows = read(path).sort_by("position").to_pylist()
        return [records.task_from_row(row, pool) for row in rows]

    def append_cost_samples(
        self, samples: Sequence[CostSample], run_key: str, iteration: int, dataset_version: str
    ) -> list[str]:
        """Keep measurements, those of one testbed all at once; those that are there already are left out.

        Every call that adds something adds a file, which a query then opens (about 0.5 ms each): samples that come one
        by one go through `journal.collecting` instead. A file is never replaced by a longer one, since a reader may
        open it between its footer and its pages.

        Args:
            run_key: of the training, or of the evaluation, that they belong to.
            iteration: of that training, from 1; `EVALUATION` for those of an evaluation.
            dataset_version: of the tables that were measured.

        Returns:
            The id of each sample, a hash of its content.
        """
        origin: Row = {"run_key": run_key, "iteration": iteration, "dataset_version": dataset_version}
        found = [records.sample_to_rows(sample, **origin) for sample in samples]
        self.append_measurements([row for rows in found for row in rows])
        return [rows[0]["sample_id"] for rows in found]

    def append_measurements(self, rows: Sequence[Row]) -> None:
        """Keep measurements as rows, one per device; a file for each testbed, dataset, run and iteration."""
        groups: dict[tuple[Place, str], list[Row]] = defaultdict(list)
        for row in rows:
            groups[measurement_place(self.root / "cost_samples", row)].append(row)
        with self.one_writer("cost_samples"):
            for (folder, start), found in groups.items():
                known = _known(folder, start, "sample_id")
                fresh = {(row["sample_id"], row["device"]): row for row in found if row["sample_id"] not in known}
                if fresh:
                    name = f"{start}.{content_id(sorted({sample for sample, _ in fresh}))}.parquet"
                    write(folder / name, pa.Table.from_pylist(list(fresh.values()), schema=schemas.MEASUREMENTS))

    def read_cost_samples(
        self, run_key: str | None = None, dataset_version: str | None = None, hardware: str | None = None
    ) -> list[CostSample]:
        """Measurements as they were appended, ordered by iteration and time; costs are float32 as testbeds give them.

        Args:
            run_key: only of this training, or of this evaluation.
            dataset_version: only of this dataset.
            hardware: only measured on this.

        Raises:
            ValueError: a file cannot be read, or a sample's dataset is not in the lake.
        """
        version = "*" if dataset_version is None else quote(dataset_version, safe="")
        run = "*" if run_key is None else quote(run_key, safe="")
        found = files(self.root / "cost_samples", f"testbed=*/dataset_version={version}/{run}.*.parquet")
        rows = [row for table in read_all(found) for row in table.to_pylist()]
        rows = [row for row in rows if hardware in (None, row["hardware"]) and run_key in (None, row["run_key"])]
        rows.sort(key=lambda row: (row["iteration"], row["created_at"]))
        pools = {name: self.read_dataset(name) for name in {row["dataset_version"] for row in rows}}
        samples: list[CostSample] = []
        for name, pool in sorted(pools.items()):
            samples += records.samples_from_rows([row for row in rows if row["dataset_version"] == name], pool)
        return samples

    def write_evaluation(
        self,
        rows: Sequence[EvaluationRow],
        model_versions: Mapping[str, str],
        run_key: str,
        *,
        dataset_version: str,
        testbed: str,
        hardware: str,
    ) -> list[str]:
        """Keep what an evaluation found, all at once; one made again takes the place of the one before.

        Args:
            model_versions: by placer, of those that are registered models; a candidate is not one yet.
            run_key: of the evaluation.

        Returns:
            The id of each row, a hash of its content.
        """
        found = [
            records.evaluation_to_row(
                row,
                model_version=model_versions.get(row.placer),
                run_key=run_key,
                dataset_version=dataset_version,
                testbed=testbed,
                hardware=hardware,
            )
            for row in rows
        ]
        folder = partition(self.root / "evaluations", testbed=testbed, dataset_version=dataset_version)
        write(folder / f"{quote(run_key, safe='')}.parquet", pa.Table.from_pylist(found, schema=schemas.EVALUATIONS))
        return [row["evaluation_id"] for row in found]

    def _dataset_path(self, version: str) -> Place:
        return partition(self.root / "tables", dataset_version=version) / "tables.parquet"

    def _tasks_path(self, version: str, split: str, key: str) -> Place:
        return partition(self.root / "tasks", dataset_version=version, split=split) / f"{quote(key, safe='')}.parquet"

    def _dataset(self, version: str) -> pa.Table:
        path = self._dataset_path(version)
        if not path.exists():
            raise ValueError(
                f"there is no dataset {version!r} in {self.root}, so there are no tables to work on; ingest it, or "
                f"use one of {self.dataset_versions()}"
            )
        return read(path)


def measurement_place(root: Place, row: Row) -> tuple[Place, str]:
    """The folder of a row of a measurement below `root`, and how the names of its run's and iteration's files start."""
    folder = partition(root, testbed=row["testbed"], dataset_version=row["dataset_version"])
    return folder, f"{quote(row['run_key'], safe='')}.{row['iteration']:04}"


def _known(folder: Place, start: str, column: str) -> set[str]:
    """What the files of one run, or of one of its iterations, have in a column."""
    found = read_all(files(folder, f"{start}.*.parquet"), [column])
    return {value for table in found for value in table.column(column).to_pylist()}


def lookups_file(one_table: Tables) -> str:
    """Where the lookups of a table lie, by what they say of it: what a dataset's version is made of as well."""
    return f"lookups/{dataset_version(one_table)}.parquet"
