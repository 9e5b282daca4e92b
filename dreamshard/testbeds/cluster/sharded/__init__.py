"""A rank's part of measuring tables that are sharded in any way.

job         what a rank is sent
operators   its shards' operators, on the lookups of their rows or samples
exchange    the collectives between pooled vectors and samples, and back
passes      a training step, timed
device_times operators of all devices, timed on one
"""
