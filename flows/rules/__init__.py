"""Decisions without measuring: warm starts, promotion, held-out tables, contestants and their tasks, changed tables."""
