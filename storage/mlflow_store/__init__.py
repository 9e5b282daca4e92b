"""MLflow: runs, the registry of placer versions, and the model that it serves.

`runs` logs for the flows and adds versions, `registry` finds and lists versions and moves aliases.
`placer_model` is the code of a version that MLflow serves.
"""

from storage.settings import quiet_environment

quiet_environment()  # before any module of this package imports MLflow, which reads the environment then

EXPERIMENT = "dreamshard"
"""Name of the experiment that all runs are in."""

LONGEST = 5000
"""Characters of a tag or description."""
