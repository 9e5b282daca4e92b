"""Placing tables that a person names: what the command `place` and the flow `place` share.

Nothing here imports Prefect, MLflow or torch before it is needed, so that commands start at once. Sentences for people go to
a function `note`, which the command prints and the flow logs.
"""
