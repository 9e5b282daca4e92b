"""Files: atomic writing, locks, content identities, text for people, and content and stores of other people."""
