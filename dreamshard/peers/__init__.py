"""The published rivals, behind the same interface as every other placer."""
