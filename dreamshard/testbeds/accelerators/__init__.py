"""What is known of accelerators without measuring: figures, kernels and links.

accelerator_spec      the figures of one kind of accelerator in its usual node
nvidia_specs, specs   presets with their sources; found by name
hardware_file         hardware of one's own, as YAML or JSON
loads                 what kernels read, write and compute for a table or any shard of one; adds up over a device
kernels, roofline     seconds of the fused operator's kernels; milliseconds of a placement
placed_kernels        seconds that tables in host memory and data-parallel copies take beside it
links, link_curves    seconds of an all-to-all, within a node by measured curves, between nodes by a model
collectives           seconds of the collectives of the other ways to shard
measurements/         public measurements of collectives, read by public_measurements
"""
