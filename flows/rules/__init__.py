"""Decisions without measuring: warm starts, promotion, held-out tables and tasks, contestants, changed tables."""
