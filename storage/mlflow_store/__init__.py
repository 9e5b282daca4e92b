"""MLflow: runs, the registry of placer versions, and the model that it serves.

What a flow logs on its runs: `runs`, `datasets`, `evaluation_datasets`. Versions of the placer: `registration` adds one,
`registry` finds one, `listing` reads all, `versions` lists them for people. Which one is in use: `topology` and
`standings` hold the rules, `champions` reads, `alias_changes` decides. Serving: `placer_model` is the code of a version.
"""

from storage.settings import quiet_environment

quiet_environment()  # before any module of this package imports MLflow, which reads the environment then
