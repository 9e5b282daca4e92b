"""Costs of single shards on one GPU, and a placer learnt from them.

    design           which shards to measure, and in what order
    collection       measures them; `pool_lookups` draws their lookups ahead of time
    dataset          the measured shards as Parquet
    report           summarises them: what fusion saves, and what costs depend on
    fit              learns a placer from them; `errors` compares its held-out error with other estimators
    bundled_placers  placers that come with the package, or lie in the home, by accelerator

`python -m dreamshard.shard_profiling.collect` is the command that measures, `... .publish` the one that bundles a placer.
"""
