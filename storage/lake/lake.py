"""The lake: append-only Parquet datasets, each file written atomically and named by its content.

    lookups/<content>.parquet                                          one table's batch, shared by datasets
    tables/dataset_version=.../tables.parquet                          one row per table
    tables/_newest.<model>.json                                        the dataset of a model that was ingested last
    halves/<task set>.json                                             which tables were trained on, which held out
    tasks/dataset_version=.../split=.../<task set>.parquet             one row per task
    cost_samples/testbed=.../dataset_version=.../<run>.<content>.parquet      one row per device
    sample_buffer/<run>.<sample>.parquet                               samples of an unfinished iteration, each at once
    exchange_samples/links=.../<content>.parquet                       one row per all-to-all measured alone
    evaluations/testbed=.../dataset_version=.../<run>.parquet          one row per placer and task
    table_estimates/<training>.<iteration>.parquet                     one row per table of a version's dataset

Hive folders: a column that a folder is named by is not in its files.

Writing the same content again adds nothing; a repeated evaluation replaces the previous one. A killed writer leaves at most
a `.tmp` file, which no reader opens. SQL queries belong in `catalog`, what is known of sources in
`ingested`.

The root may be a bucket. Hosts that write at once corrupt nothing: the same content has the same name, and different runs
have different names.

Tables ingested before, so that ingesting a source again processes only its new and changed tables.

    sources/<key>.parquet             one row per table of a source in one state: its fingerprint and its statistics
    sources/_<source>.json            the key of the state that was ingested last
    ingested/<key>/<content>.parquet  the same rows of an unfinished ingestion, which continues from them

The key identifies a source's content, its state. A fingerprint identifies everything that a table's lookups are made from
(`dreamshard.workloads.source.Workload`), so the same fingerprint always means the same statistics and lookups file.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from dreamshard.costs import CostSample, ExchangeSample
from dreamshard.evaluation import EvaluationRow
from dreamshard.files import json_digest
from dreamshard.search import DreamShardPlacer
from dreamshard.tables import Tables
from dreamshard.tasks import PlacementTask, Shards
from dreamshard.testbeds.rounds import least
from dreamshard.workloads import LookupFiles, Lookups, dataset_version, write_lookups
from dreamshard.workloads.task_sampling import TableSplit
from storage.filesystem import AnyPath, list_file_infos, list_files, read_json, remove, write_json
from storage.lake import rows
from storage.lake.parquet_files import (
    content_id,
    datasets,
    hive_folder,
    hive_values,
    read_parquet,
    read_parquet_files,
    write_parquet,
    write_rows,
)

EVALUATION = 0
"""The iteration of a cost sample that an evaluation measured; its `run_key` is the evaluation's key."""


@dataclass(frozen=True)
class Lake:
    """Everything that was ingested and measured, below one folder.

    Attributes:
        root: the folder, on this machine or elsewhere.
        local: this machine's folder for copies of lookups, used if `root` is elsewhere; it may be removed while nothing
            runs.
    """

    root: AnyPath
    local: Path

    def write_table_lookups(self, lookups: Lookups, description: Tables) -> AnyPath:
        """Write the lookups of one table unless they exist; returns the file, which datasets of the same table share.

        Args:
            description: the table's `statistics`; its content names the file.
        """
        path = self.root / rows.lookups_file(description)
        if not path.exists():
            local = path if isinstance(path, Path) else self.local / "lookups" / path.name
            local.parent.mkdir(parents=True, exist_ok=True)
            write_lookups(local, lookups)
            if not isinstance(path, Path):
                path.fs.put_file(str(local), path.path)  # in one piece; ranks of this host read the local copy
        return path

    def lookup_source(self, version: str) -> LookupFiles:
        """Lookups of the tables of dataset `version` by name; picklable, reads each file on demand.

        Raises:
            ValueError: there is no such dataset.
        """
        files, copies = self.lookups_files(version), self.local / "lookups"
        if isinstance(self.root, Path):
            return LookupFiles({name: Path(self.root, file) for name, file in files.items()})
        return LookupFiles({name: str(self.root / file) for name, file in files.items()}, copies)

    def write_dataset(self, tables: Tables, source: str, model: str | None = "") -> str:
        """Write the tables of a dataset, and return its version.

        Args:
            source: origin of the tables, for people.
            model: whose stages run manually take it from now on; None for none, as tables of profiles have no lookups.
        """
        version = dataset_version(tables)
        older = [] if model is None else [name for name in {"", model} if self.newest_dataset(name) != version]
        if older or not self.has_dataset(version):
            content = rows.tables_to_rows(tables, source=source, created_at=rows.now())
            write_parquet(self._dataset_path(version), content)
        for name in older:
            write_json(self.root / "tables" / f"_newest.{name}.json", {"dataset": version})
        return version

    def newest_dataset(self, model: str = "") -> str | None:
        """Version of the dataset that was ingested last, of a model or of any; None before the first."""
        try:
            return str(read_json(self.root / "tables" / f"_newest.{model}.json")["dataset"])
        except FileNotFoundError:
            return None

    def has_dataset(self, version: str) -> bool:
        """Whether dataset `version` is here."""
        return self._dataset_path(version).exists()

    def dataset_with(self, tables: Tables) -> str | None:
        """The dataset ingested last that has all these tables in these sizes; None if there is none."""
        wanted = set(tables.sizes)
        infos = list_file_infos(self.root / "tables", "dataset_version=*/tables.parquet")
        for info in sorted(infos, key=lambda info: info.modified, reverse=True):
            known = read_parquet(info.path)
            columns = (known.column(name).to_pylist() for name in ("name", "rows", "dim"))
            if wanted <= set(zip(*columns, strict=True)):
                return hive_values(info.path)["dataset_version"]
        return None

    def read_dataset(self, version: str) -> Tables:
        """The tables of dataset `version`."""
        return rows.tables_from_rows(self._read_dataset_rows(version))

    def lookups_files(self, version: str) -> dict[str, str]:
        """Path of each table's lookups below the root, by name; raises like `read_dataset`."""
        dataset = self._read_dataset_rows(version)
        return dict(zip(*(dataset.column(name).to_pylist() for name in ("name", "lookups_file")), strict=True))

    def dataset_source(self, version: str) -> str:
        """The `source` that the dataset was last written with."""
        return str(self._read_dataset_rows(version).column("source")[0].as_py())

    def write_table_split(self, tasks: str, split: TableSplit) -> None:
        """Write the split that the task set `tasks` was drawn from, unless it exists.

        It is never removed: a later training must know every table that its placer or an earlier one learned from.
        """
        if not self.has_table_split(tasks):
            write_json(self._split_path(tasks), {"train": sorted(split.train), "test": sorted(split.test)})

    def has_table_split(self, tasks: str) -> bool:
        """Whether the split of a task set is known; it is lost if somebody empties the lake."""
        return self._split_path(tasks).exists()

    def read_table_split(self, tasks: str) -> TableSplit:
        """The split of a task set.

        Raises:
            ValueError: it is not known.
        """
        path = self._split_path(tasks)
        try:
            content = read_json(path)
        except FileNotFoundError as error:
            raise ValueError(
                f"{path} is lost, so it is not known which tables were trained on and which were held out; restore it, or "
                "train from scratch with `dreamshard run --full`"
            ) from error
        return TableSplit(frozenset(content["train"]), frozenset(content["test"]))

    def write_tasks(
        self,
        tasks: Sequence[PlacementTask],
        dataset_version: str,
        split: str,
        key: str | None = None,
        seed: int | None = None,
    ) -> str:
        """Write tasks of a dataset, unless they exist, and return their key.

        Args:
            split: `train` or `test`.
            key: name of this set of tasks, which always means the same tasks; by default the hash of its content.
            seed: seed of the draw, for people.
        """
        content = [rows.task_to_row(task) for task in tasks]
        task_set = key or content_id(content)
        path = self._tasks_path(dataset_version, split, task_set)
        if not path.exists():
            same = {"dataset_version": dataset_version, "split": split, "task_set": task_set, "seed": seed}
            when = rows.now()
            write_rows(
                path, "tasks", [{**same, **row, "created_at": when, "position": i} for i, row in enumerate(content)]
            )
        return task_set

    def read_tasks(self, dataset_version: str, split: str, key: str) -> list[PlacementTask]:
        """The tasks of one key, in the order in which they were drawn.

        Raises:
            ValueError: there are none.
        """
        path = self._tasks_path(dataset_version, split, key)
        if not path.exists():
            raise ValueError(
                f"there are no {split} tasks {key!r} of dataset {dataset_version}, so there is nothing to place; draw "
                "them first"
            )
        pool = self.read_dataset(dataset_version)
        return [rows.task_from_row(row, pool) for row in read_parquet(path).to_pylist()]

    @contextmanager
    def collecting(self, run_key: str, iteration: int, dataset_version: str) -> Iterator[Callable[[CostSample], None]]:
        """Yield a function that saves a sample at once; all are in `cost_samples` when the block ends, even by an error.

        Samples that a killed process left of this run are moved there first, so it loses no measurement.

        Args:
            run_key: key of the training or evaluation.
            iteration: iteration of the training, from 1; `EVALUATION` for an evaluation.
            dataset_version: dataset of the measured tables.
        """
        run = quote(run_key, safe="")

        def save(sample: CostSample) -> None:
            devices = rows.sample_to_rows(sample, run_key=run_key, iteration=iteration, dataset_version=dataset_version)
            name = f"{run}.{devices[0]['sample_id']}.parquet"
            write_rows(self.root / "sample_buffer" / name, "cost_samples", devices)

        self._flush(run)
        try:
            yield save
        finally:
            self._flush(run)

    def append_measurements(self, measurements: pa.Table) -> None:
        """Add measurements of a run, one row per device, to its file, without samples that it has."""
        first, schema = measurements.slice(0, 1).to_pylist()[0], datasets()["cost_samples"]
        hive = {name: first[name] for name in ("testbed", "dataset_version")}
        folder = hive_folder(self.root / "cost_samples", **hive)
        run, samples = quote(first["run_key"], safe=""), schema.empty_table()
        former = list_files(folder, f"{run}.*.parquet")
        for table in (*read_parquet_files(former), measurements):
            is_known = pc.is_in(table.column("sample_id"), samples.column("sample_id").combine_chunks())
            samples = pa.concat_tables([samples, table.filter(pc.invert(is_known)).select(schema.names)])
        target = folder / f"{run}.{content_id(sorted(set(samples.column('sample_id').to_pylist())))}.parquet"
        if former != [target]:
            # others slow a machine, never speed it up, so of each measurement the least round counts
            samples = samples.sort_by([(name, "ascending") for name in ("measurement_id", "overall_ms", "round")])
            firsts = samples.group_by("measurement_id", use_threads=False).aggregate([("sample_id", "first")])
            is_least = pc.is_in(samples.column("sample_id"), firsts.column("sample_id_first").combine_chunks())
            samples = samples.set_column(schema.names.index("is_least"), "is_least", is_least)
            write_parquet(target, samples.sort_by([("created_at", "ascending"), ("device", "ascending")]))
            remove(file for file in former if file != target)

    def _flush(self, run: str) -> None:
        """Move the buffered samples of a run to `cost_samples`; the next call completes an interrupted one."""
        if files := list_files(self.root / "sample_buffer", f"{run}.*.parquet"):
            self.append_measurements(pa.concat_tables(read_parquet_files(files)))
            remove(files)

    def read_cost_samples(self, run_key: str) -> list[CostSample]:
        """The least disturbed round of each measurement, without the reference placement; raises like `read_rounds`."""
        rounds: dict[Hashable, list[CostSample]] = defaultdict(list)
        for sample in self.read_rounds(run_key):
            if not sample.is_reference:
                rounds[sample.task.name, sample.placement, sample.repeat].append(sample)
        return list(map(least, rounds.values()))

    def read_rounds(self, run_key: str) -> list[CostSample]:
        """All rounds of a training or evaluation by iteration and time; costs are float32 as testbeds return them.

        Raises:
            ValueError: a file cannot be read, or the samples' dataset is not in the lake.
        """
        files = list_files(self.root / "cost_samples", f"*/*/{quote(run_key, safe='')}.*.parquet")
        records = [row for table in read_parquet_files(files) for row in table.to_pylist()]
        records.sort(key=lambda row: (row["iteration"], row["created_at"]))
        return rows.samples_from_rows(records, self.read_dataset(records[0]["dataset_version"])) if records else []

    def write_exchanges(self, links: str, samples: Sequence[ExchangeSample]) -> None:
        """Write all-to-alls measured alone, which serve every training on these links.

        Args:
            links: kind of connection between devices, whatever their number.
        """
        content = [rows.exchange_to_row(sample) for sample in samples]
        if content:
            path = hive_folder(self.root / "exchange_samples", links=links) / f"{content_id(content)}.parquet"
            write_rows(path, "exchange_samples", [row | {"created_at": rows.now()} for row in content])

    def read_exchanges(self, links: str, versions: Mapping[str, str]) -> list[ExchangeSample]:
        """The all-to-alls of these links, oldest first, by their least disturbed rounds, without other library versions."""
        files = list_files(hive_folder(self.root / "exchange_samples", links=links), "*.parquet")
        records = [row for table in read_parquet_files(files) for row in table.to_pylist()]
        rounds: dict[Hashable, list[ExchangeSample]] = defaultdict(list)
        for sample in map(rows.exchange_from_row, sorted(records, key=lambda row: row["created_at"])):
            if sample.versions.items() <= versions.items():
                exchange = sample.exchange
                rounds[exchange.devices_per_host, tuple(exchange.sent_bytes.tolist())].append(sample)
        return list(map(least, rounds.values()))

    def write_evaluation(
        self,
        measured: Sequence[EvaluationRow],
        placers: Mapping[str, rows.Row],
        run_key: str,
        *,
        dataset_version: str,
        testbed: str,
        hardware: str,
    ) -> None:
        """Write the results of an evaluation in one file, replacing earlier ones.

        Args:
            placers: identity of a placer, by its name: `model_version` of a registered version, or `training` and
                `iteration` of a candidate, by which the view finds the version once it is registered.
            run_key: the evaluation's key.
        """
        same = {"run_key": run_key, "dataset_version": dataset_version, "testbed": testbed, "hardware": hardware}
        content = []
        for row in measured:
            record = {
                **same,
                "placer": row.placer,
                **placers.get(row.placer, {}),
                "task": row.task.name,
                "num_devices": row.task.num_devices,
                "overall_ms": row.overall_ms if row.fits else None,
                "predicted_ms": row.predicted_ms if math.isfinite(row.predicted_ms) else None,
                "legal": row.fits,
                "place_ms": row.place_ms,
            }
            if row.placement:
                shards = Shards.of(row.task, row.placement)
                record |= {**rows.shard_columns(shards.tables), "placement": shards.device.tolist()}
            content.append(record | {"evaluation_id": content_id(record), "created_at": rows.now()})
        folder = hive_folder(self.root / "evaluations", testbed=testbed, dataset_version=dataset_version)
        write_rows(folder / f"{quote(run_key, safe='')}.parquet", "evaluations", content)

    def write_estimates(self, placer: DreamShardPlacer, dataset: str, training: str, iteration: int) -> None:
        """Each table's cost alone on a device, by a version's cost network; the view `table_costs` shows it.

        Nothing is written if that is done, or if the placer does not say what its costs were measured on.
        """
        path = self.root / "table_estimates" / f"{training}.{iteration:04}.parquet"
        measured = placer.cost_network.measured_on
        if measured is None or path.exists():
            return
        tables = self.read_dataset(dataset)
        same = {"dataset_version": dataset, "training": training, "iteration": iteration, "created_at": rows.now()}
        same |= measured.model_dump(include={"precision", "optimizer", "batch_size", "testbed", "hardware"})
        content = [
            {
                **same,
                "table_name": tables.names[t],
                "lookups_file": rows.lookups_file(tables.select([t])),
                "forward_compute_ms": forward,
                "backward_compute_ms": backward,
            }
            for t, (forward, backward) in enumerate(placer.alone_ms(tables).double().tolist())
        ]
        write_rows(path, "table_estimates", content)

    def _dataset_path(self, version: str) -> AnyPath:
        return hive_folder(self.root / "tables", dataset_version=version) / "tables.parquet"

    def _split_path(self, tasks: str) -> AnyPath:
        return self.root / "halves" / f"{tasks}.json"

    def _tasks_path(self, version: str, split: str, key: str) -> AnyPath:
        return hive_folder(self.root / "tasks", dataset_version=version, split=split) / f"{quote(key, safe='')}.parquet"

    def _read_dataset_rows(self, version: str) -> pa.Table:
        try:
            return read_parquet(self._dataset_path(version))
        except FileNotFoundError as error:
            known = [
                path.parent.name.partition("=")[2] for path in list_files(self.root / "tables", "*/tables.parquet")
            ]
            raise ValueError(
                f"there is no dataset {version!r} in {self.root}, so there are no tables to work on; ingest it, or use one "
                f"of {known}"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """The result of ingesting a source.

    Attributes:
        tables: all of the source's, in its order.
        new: number of new or changed tables.
        reused: number of tables whose lookups and statistics were in the lake.
        notes: unused parts of the source, and assumptions.
    """

    tables: Tables
    new: int
    reused: int
    notes: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        """Version of the dataset of these tables."""
        return dataset_version(self.tables)


def keep_part(lake: Lake, key: str, fingerprints: Sequence[str], tables: Tables) -> None:
    """Remember some tables of a source in a state, whose lookups are in the lake."""
    write_parquet(
        lake.root / "ingested" / key / f"{content_id(list(fingerprints))}.parquet", _rows(fingerprints, tables)
    )


def keep_state(lake: Lake, source: str, key: str, fingerprints: Sequence[str], tables: Tables) -> None:
    """Remember all tables of a source in a state, instead of the parts of it."""
    if not _state(lake, key).exists():
        write_parquet(_state(lake, key), _rows(fingerprints, tables))
    if _newest_key(lake, source) != [key]:
        write_json(_newest(lake, source), {"key": key})
    remove(list_files(lake.root / "ingested" / key, "*.parquet"))


def read_fingerprints(lake: Lake, key: str) -> list[str] | None:
    """Fingerprints of the tables of a state in the source's order, or None if it was never ingested."""
    if not _state(lake, key).exists():
        return None
    fingerprints: list[str] = read_parquet(_state(lake, key)).column("fingerprint").to_pylist()
    return fingerprints


def known_tables(lake: Lake, source: str, key: str, fingerprints: Sequence[str], *, lookups: bool) -> dict[str, Tables]:
    """The one-table `Tables` of each fingerprint that was ingested.

    Known are the tables of the state itself, of its unfinished ingestion, and of the state that was ingested last.

    Args:
        source: where the tables come from.
        key: of the source's present state.
        lookups: leave out tables whose lookups file does not exist.
    """
    parts = read_parquet_files(list_files(lake.root / "ingested" / key, "*.parquet"))
    keys = [key, *_newest_key(lake, source)]
    # after the parts, which another process may just have replaced by the state
    states = read_parquet_files([path for path in (_state(lake, key) for key in dict.fromkeys(keys)) if path.exists()])
    if not (parts or states):
        return {}
    ingested = pa.concat_tables([*states, *parts])
    files, wanted = ingested.column("lookups_file").to_pylist(), set(fingerprints)
    existing = {f"lookups/{path.name}" for path in list_files(lake.root / "lookups", "*.parquet")}
    position = {
        fingerprint: i
        for i, fingerprint in enumerate(ingested.column("fingerprint").to_pylist())
        if fingerprint in wanted and (files[i] in existing or not lookups)
    }
    tables = rows.tables_from_rows(ingested.take(pa.array(position.values(), pa.int64())))
    return {fingerprint: tables.select([t]) for t, fingerprint in enumerate(position)}


def _rows(fingerprints: Sequence[str], tables: Tables) -> pa.Table:
    return rows.tables_to_rows(tables).append_column("fingerprint", pa.array(fingerprints, pa.string()))


def _state(lake: Lake, key: str) -> AnyPath:
    return lake.root / "sources" / f"{key}.parquet"


def _newest_key(lake: Lake, source: str) -> list[str]:
    """The key of the state that was ingested last, if any."""
    try:
        return [read_json(_newest(lake, source))["key"]]
    except FileNotFoundError:
        return []


def _newest(lake: Lake, source: str) -> AnyPath:
    return lake.root / "sources" / f"_{json_digest(source)}.json"  # other readers of the folder pass over it
