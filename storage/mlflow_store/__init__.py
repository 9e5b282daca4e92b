"""MLflow: runs, the registry of placer versions, and the model that it serves.

runs, datasets, evaluation_datasets      what a flow logs on its runs
registration, registry, alias_changes    versions of the placer: adding, finding, choosing which one is in use
versions                                 versions side by side, for people
placer_model, placer_interface, server   serving a version
"""

from storage.settings import quiet_environment

quiet_environment()  # here, since MLflow reads it when it is first imported
