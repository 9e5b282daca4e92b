"""Costs computed from an accelerator's figures, without measuring.

accelerator    the figures of one kind of accelerator in its usual node: presets/*.yaml, and files of one's own
links          seconds of collectives: within a node by curves through measurements/, between nodes by a model
roofline       loads of shards, which add up over a device, and milliseconds of them: kernels, caches, dense optimizers
"""
