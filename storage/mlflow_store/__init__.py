"""MLflow: runs, the registry of placer versions, and the model that it serves.

`runs` and `datasets` are what flows log. `registration` adds a version, `registry` finds one, `aliases` moves aliases,
`versions` lists them. `placer_model` is the code of a version that MLflow serves.
"""

from storage.settings import quiet_environment

quiet_environment()  # before any module of this package imports MLflow, which reads the environment then
