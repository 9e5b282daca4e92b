"""Benchmarks: quality and speed, compared with bars and with the published programs."""
