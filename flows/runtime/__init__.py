"""What flows run on: open testbeds, locks, retries, content keys, task runners, progress."""
