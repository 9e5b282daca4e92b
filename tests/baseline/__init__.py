"""What must not get worse while the code gets smaller: costs of plans and errors of predictions.

    python -m tests.baseline           compares with the frozen figures; exits with 1 where one got worse
    python -m tests.baseline --write   freezes the figures of this version

`tables.parquet`, `tasks.json` and `placers/` are inputs: they stay as they are, whatever draws tables or trains networks
later, unless networks change their form. `figures.json` holds the frozen figures. Only `figures.py` knows the interfaces of
the package.
"""
