"""What is decided without measuring: warm starts, promotion, held-out tables, who is compared with whom and on what."""
