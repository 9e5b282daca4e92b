"""Names and numbers that the files of tables and costs are made of; without torch, which reading those files does without."""

PHASES = ("forward_compute", "forward_comm", "backward_comm", "backward_compute")
"""Of a training step on every device, in the order in which they run; the last axis of a stacked cost tensor."""

NUM_BINS = 17
"""Access-count bins: (0,1], (1,2], (2,4], ... (16384,32768], (32768, inf)."""
