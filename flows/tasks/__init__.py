"""Every Prefect task: each reads from the store, calls one library function and writes to the store."""
