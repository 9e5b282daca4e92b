"""Costs of single shards on one GPU: which to measure, measuring them, learning a placer from them, publishing it."""
