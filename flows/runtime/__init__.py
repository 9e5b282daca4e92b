"""What flows run on: open testbeds, locks, retries, identities, task runners, progress."""
