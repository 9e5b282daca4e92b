"""Costs computed from an accelerator's figures, without measuring.

accelerator    the figures of one kind of accelerator in its usual node: presets/*.yaml, and files of one's own
loads          what kernels read, write and compute for a table or any shard of one; adds up over a device
kernels        seconds of the fused operator's kernels, of caches over host memory and of dense optimizers
links          seconds of collectives: within a node by curves through measurements/, between nodes by a model
roofline       milliseconds of a placement
"""
