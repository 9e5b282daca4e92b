"""Files: atomic writing, locks, content identities, and content and stores of other people."""
