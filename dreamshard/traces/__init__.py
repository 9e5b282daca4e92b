"""PyTorch profiler traces of a running job -> cost samples -> a placer that knows the job's real costs.

samples    the ranks' traces -> milliseconds per step and phase; with the plan -> a cost sample
learning   samples and a preset as prior -> a placer
"""
