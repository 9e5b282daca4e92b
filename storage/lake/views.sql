-- The catalog's views. `lake.NAME` are the rows of a dataset's files, of its columns as `datasets.sql` has them.

create view versions as from lake.versions;

create view tables as from lake.tables;

create view tasks as from lake.tasks;

-- The row of device 0 carries the whole sample.
create view rounds as
select * exclude (
    device, forward_compute_ms, forward_comm_ms, backward_comm_ms, backward_compute_ms, device_ms, memory_bytes, num_tables,
    sum_dim, single_table, shard_tables
)
from lake.cost_samples where device = 0;

create view cost_samples as select * exclude (is_least, is_reference) from rounds where is_least and not is_reference;

create view device_costs as
select * exclude (
    clock, batch_size, precision, optimizer, num_devices, devices_per_host, capacity_bytes, overall_ms, repeats, round, repeat,
    is_reference, is_least, infeasible_device, asked_bytes, free_bytes, table_names, table_columns, placement, versions,
    created_at
)
from lake.cost_samples where is_least and not is_reference;

create view exchange_samples as
from lake.exchange_samples
qualify row_number() over (
    partition by links, versions, num_devices, devices_per_host, sent_bytes order by slowest_forward_ms + slowest_backward_ms
) = 1;

-- A version that was registered after its evaluation was written is found here: `versions` names training and evaluation.
create view evaluations as
with registered as (
    select training, iterations, max(version) as version, any_value(registered_model) as model from versions group by 1, 2
)
select evaluated.* replace (
    coalesce(try_cast(split_part(evaluated.model_version, '/', 3) as integer), registered.version) as model_version
), coalesce(nullif(split_part(evaluated.model_version, '/', 2), ''), registered.model) as registered_model
from lake.evaluations as evaluated
left join registered
    on registered.training = evaluated.training and registered.iterations = evaluated.iteration;

-- Each placement that an evaluation measured, once per device.
create view evaluated_devices as
select evaluated.evaluation_id, evaluated.run_key, evaluated.dataset_version, evaluated.testbed,
    evaluated.hardware, evaluated.placer, evaluated.model_version, evaluated.task,
    devices.device,
    devices.forward_compute_ms, devices.forward_comm_ms, devices.backward_comm_ms, devices.backward_compute_ms,
    devices.device_ms, devices.memory_bytes, devices.num_tables, devices.sum_dim, devices.shard_tables,
    devices.sample_id, evaluated.created_at
from evaluations as evaluated
join (
    select sample_id, run_key, task, table_names, table_columns, placement from cost_samples where iteration = 0
    qualify row_number() over (partition by run_key, task, table_names, table_columns, placement order by created_at) = 1
) as samples
    on samples.run_key = evaluated.run_key and samples.task = evaluated.task
    and samples.table_names = evaluated.table_names and samples.placement = evaluated.placement
    and samples.table_columns is not distinct from evaluated.table_columns
join device_costs as devices on devices.sample_id = samples.sample_id and devices.run_key = evaluated.run_key;

create view placements as
select 'cost_sample' as origin, sample_id as origin_id, run_key, dataset_version, testbed, hardware, task,
    cast(null as varchar) as placer, num_devices, unnest(table_names) as table_name, unnest(table_columns) as columns,
    unnest(placement) as device
from cost_samples
union all
select 'evaluation', evaluation_id, run_key, dataset_version, testbed, hardware, task, placer, num_devices,
    unnest(table_names), unnest(table_columns), unnest(placement)
from evaluations;

-- Measured comes after estimated in the alphabet. Current datasets are those that the models' champions were trained on,
-- else the newest.
create view table_costs as
with known as materialized (
    select dataset_version, name, rows, dim, pooling_factor, lookups_file, created_at from tables
), current as (
    select coalesce(
        (select list(dataset_version) from versions where is_default and contains(aliases, 'champion')
            and dataset_version in (select dataset_version from known)),
        (select [arg_max(dataset_version, created_at)] from known)
    ) as datasets
), newest as (
    select known.*, contains(current.datasets, known.dataset_version) as is_current from known, current
    qualify row_number() over (
        partition by if(is_current, dataset_version, null), name order by created_at desc, known.dataset_version
    ) = 1
), alone as (
    select known.lookups_file, measured.testbed, measured.hardware, measured.precision, measured.optimizer,
        measured.batch_size, measured.forward_compute_ms, measured.backward_compute_ms
    from lake.cost_samples as measured
    join known on known.name = measured.single_table and known.dataset_version = measured.dataset_version
    where is_least and not is_reference and single_table is not null and measured.forward_compute_ms is not null
), measured as (
    select lookups_file, any_value(testbed) as testbed, hardware, precision, optimizer, batch_size,
        median(forward_compute_ms) as forward_compute_ms, median(backward_compute_ms) as backward_compute_ms,
        count(*) as samples
    from alone group by lookups_file, hardware, precision, optimizer, batch_size
), estimated as (
    select estimates.*, versions.version, versions.prediction_error_pct
    from lake.table_estimates as estimates
    left join versions on versions.training = estimates.training and versions.iterations = estimates.iteration
    qualify row_number() over (
        partition by lookups_file, estimates.hardware, estimates.precision, estimates.optimizer,
            estimates.batch_size
        order by not contains(coalesce(versions.aliases, ''), 'champion'), not coalesce(versions.is_default, false),
            versions.version desc nulls last, estimates.created_at desc
    ) = 1
), costs as (
    select lookups_file, testbed, hardware, precision, optimizer, batch_size, forward_compute_ms,
        backward_compute_ms, 'measured' as origin, cast(null as double) as error, samples,
        cast(null as integer) as model_version
    from measured
    union all
    select lookups_file, testbed, hardware, precision, optimizer, batch_size, forward_compute_ms,
        backward_compute_ms, 'estimated', prediction_error_pct / 100, null, version
    from estimated
), best as (
    select * from costs qualify row_number() over (
        partition by lookups_file, hardware, precision, optimizer, batch_size order by origin desc
    ) = 1
)
select newest.name as table_name, best.hardware,
    best.forward_compute_ms + best.backward_compute_ms as compute_ms,
    cast(best.forward_compute_ms as double) as forward_compute_ms,
    cast(best.backward_compute_ms as double) as backward_compute_ms,
    best.origin, best.error, best.samples, best.model_version, newest.rows, newest.dim, newest.pooling_factor,
    newest.is_current, newest.dataset_version, best.testbed, best.precision, best.optimizer, best.batch_size
from best join newest using (lookups_file);
