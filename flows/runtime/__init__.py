"""Support for flows: open testbeds and sources, locks, retries, progress."""
