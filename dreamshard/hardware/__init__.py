"""Costs computed from an accelerator's figures, without measuring.

accelerator    the figures of one kind of accelerator in its usual node: presets/*.yaml, and files of one's own
loads          what kernels read, write and compute for a table or any shard of one; adds up over a device
links          seconds of collectives: within a node by curves through measurements/, between nodes by a model
roofline       milliseconds of a placement, and seconds of kernels, caches over host memory and dense optimizers
"""
