"""Homes that were moved or copied: their own databases and files then name the folder where they lie now.

MLflow and Prefect keep absolute addresses, so a home says in `home.json` where it lay when it was opened last. `settle`
compares that, and rewrites what names the old folder; the original of a copy is neither read nor written.
"""

from storage.relocation.settling import check, settle

__all__ = ["check", "settle"]
