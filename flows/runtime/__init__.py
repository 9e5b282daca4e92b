"""What keeps flows running: open testbeds, locks, retries, caching, task runners, progress."""
