"""Where tables come from: one module per source, all yielding one `WorkloadTable` at a time."""
