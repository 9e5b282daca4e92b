"""Support for flows: open testbeds, locks, retries, identities, task runners, progress."""
