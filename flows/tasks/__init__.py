"""Every Prefect task: reads, calls one library function, writes."""
