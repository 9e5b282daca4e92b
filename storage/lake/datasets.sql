-- Columns of the lake's files, by dataset; names carry the unit. DuckDB's views and the writers of the files both read this.
-- Times are UTC without a time zone, because DuckDB needs another package to return zones to Python.

create schema empty;

-- One row per registered version, as the registry was when it last changed by a command or a flow.
create table empty.versions (
    model varchar,                       -- that it places
    registered_model varchar,            -- one per model and topology
    version integer,                     -- number within its registered model
    algorithm varchar, name varchar, aliases varchar,
    is_default boolean,                  -- whether `champion` or a number alone of the model is of its topology
    created_at timestamp, source varchar, dataset_version varchar,
    tables integer,                      -- number of tables in the dataset
    table_diff varchar, mode varchar,
    tables_per_task varchar,             -- a number, or all
    testbed varchar, hardware varchar, devices integer,
    devices_per_host integer,            -- null for as many as the hardware has
    memory_gb double,                    -- for tables on each device
    precision varchar, optimizer varchar, batch_size bigint, recipe varchar, seed integer, iterations integer,
    warm_from integer,                   -- version whose networks it started from
    cost_ms double,                      -- mean of its held-out tasks, or of the model
    prediction_error_pct double,         -- mean relative error on held-out placements
    gain_over_best_heuristic_pct double, -- of the cost, with 95 % intervals
    gain_over_best_heuristic_pct_low double, gain_over_best_heuristic_pct_high double,
    gain_over_champion_pct double, gain_over_champion_pct_low double, gain_over_champion_pct_high double,
    reason varchar, decided_by varchar, training varchar, evaluation varchar,
    commit varchar, libraries varchar, prefect_run varchar, mlflow_run varchar
);

-- One row per table and dataset version.
create table empty.tables (
    dataset_version varchar,
    position integer,                    -- index of the table in its dataset
    name varchar, rows bigint, dim integer,
    pooling_factor double,               -- mean lookups per sample
    bin_0 double, bin_1 double, bin_2 double, bin_3 double, bin_4 double, bin_5 double, bin_6 double, bin_7 double,
    bin_8 double, bin_9 double, bin_10 double, bin_11 double, bin_12 double, bin_13 double, bin_14 double, bin_15 double,
    bin_16 double,                       -- shares of the distinct rows
    lookups bigint, unique_rows bigint,
    poolings double,                     -- pooled vectors of a sample; 0 for sequences, which have one per lookup
    block_share float[],                 -- of the lookups, in each of 64 equal blocks of rows; null for even ones
    source varchar,
    lookups_file varchar,                -- path below the lake's root
    created_at timestamp
);

-- One row per placement task.
create table empty.tasks (
    dataset_version varchar,
    split varchar,                       -- train or test
    task_set varchar,                    -- key of the set of tasks
    position integer, task varchar, table_names varchar[],
    table_columns integer[][],           -- first and last (exclusive) column of each; null for whole tables
    num_tables integer, num_devices integer,
    devices_per_host integer,            -- null for as many as the hardware has
    memory_bytes bigint,                 -- for tables on each device
    precision varchar, optimizer varchar, seed bigint, created_at timestamp
);

-- One row per device and round of a measured placement, so that a round and its devices appear in one atomic rename. The
-- views `cost_samples` and `device_costs` show the least disturbed round of each measurement, `rounds` all.
create table empty.cost_samples (
    sample_id varchar,
    measurement_id varchar,              -- of the rounds of one measurement
    round integer,                       -- from 0
    repeat integer,                      -- of the same placement, from 0
    is_reference boolean,                -- of the placement that shows how steady the machine is
    is_least boolean,                    -- of the least disturbed round of its measurement
    run_key varchar,                     -- a training or an evaluation
    iteration integer,                   -- of the training, from 1; 0 if an evaluation measured it
    dataset_version varchar, testbed varchar, hardware varchar, task varchar,
    -- of the device; times are null if a shard of the placement did not fit
    device integer, forward_compute_ms float, forward_comm_ms float, backward_comm_ms float, backward_compute_ms float,
    device_ms float,                     -- sum of the phases
    memory_bytes bigint,                 -- total of the tables on the device
    num_tables integer, sum_dim bigint,
    single_table varchar,                -- the table's name if the device holds exactly one: the cost of a single table
    shard_tables varchar[],              -- every table on the device
    -- of the placement
    clock varchar, batch_size bigint, precision varchar, optimizer varchar, num_devices integer,
    devices_per_host integer,            -- null for as many as the hardware has
    capacity_bytes bigint,               -- for tables on each device
    overall_ms double,
    repeats integer,                     -- timed passes of the round
    infeasible_device integer,           -- device whose shard did not fit; null if all did
    asked_bytes bigint,                  -- size of that shard
    free_bytes bigint,                   -- left on its device
    table_names varchar[],               -- null except on device 0, like the next two columns
    table_columns integer[][],           -- first and last (exclusive) column of each; null for whole tables
    placement integer[],                 -- device of each table in table_names
    versions varchar,                    -- JSON object: library to version
    created_at timestamp
);

-- One row per round of an all-to-all measured alone.
create table empty.exchange_samples (
    links varchar, testbed varchar, hardware varchar,
    versions varchar,                    -- JSON object: library to version
    num_devices integer,
    devices_per_host integer,            -- null for as many as the hardware has
    host_devices integer,                -- of the hardware; null if all devices share a host
    largest_bytes bigint,                -- the most that a device sends
    slowest_forward_ms double, slowest_backward_ms double, repeats integer, round integer, clock varchar,
    sent_bytes bigint[], forward_ms float[], backward_ms float[],  -- of each device
    created_at timestamp
);

-- One row per placer and held-out task.
create table empty.evaluations (
    evaluation_id varchar, run_key varchar, dataset_version varchar, testbed varchar, hardware varchar, placer varchar,
    model_version varchar,               -- URI of a registered version, of which the view makes model and number
    training varchar,                    -- of a candidate; null for other placers
    iteration integer,                   -- of that training
    task varchar, num_devices integer,
    overall_ms double,                   -- least disturbed round; null if the placement did not fit
    predicted_ms double, legal boolean, place_ms double, table_names varchar[], table_columns integer[][],
    placement integer[], created_at timestamp
);

-- One row per table of a version's dataset: its cost alone on a device, as the version's cost network estimates it.
create table empty.table_estimates (
    dataset_version varchar, table_name varchar, lookups_file varchar, testbed varchar, hardware varchar,
    precision varchar, optimizer varchar, batch_size bigint, forward_compute_ms double, backward_compute_ms double,
    training varchar,                    -- whose cost network estimates
    iteration integer, created_at timestamp
);
