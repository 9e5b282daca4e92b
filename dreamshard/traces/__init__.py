"""PyTorch profiler traces of a running job -> cost samples -> a placer that knows the job's real costs.

reading    one rank's trace -> milliseconds per step and phase
samples    the ranks' traces and the plan -> a cost sample
learning   samples and a preset as prior -> a placer
"""
