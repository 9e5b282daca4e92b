"""The processes of `dreamshard up`, the work pool, and workers."""
