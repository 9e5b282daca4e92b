"""Support for flows: open testbeds, locks, retries, identities, progress."""
