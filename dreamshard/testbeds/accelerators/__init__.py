"""What is known of accelerators without measuring: figures, kernels, links, and how public measurements agree.

accelerator_spec      the figures of one kind of accelerator in its usual node
nvidia_specs, specs   presets with their sources; found by name
hardware_file         hardware of one's own, as YAML or JSON
loads                 what kernels read, write and compute for a table; adds up over a shard
kernels, roofline     seconds of the fused operator's kernels; milliseconds of a placement
links, link_curves    seconds of an all-to-all, within a node by measured curves, between nodes by a model
measurements/         public measurements of GPUs, read by public_measurements
measured_kernels      predicted beside measured kernels; measured_links the same of all-to-alls
checked, preset_check how far each preset has been checked: in a line, and as docs/presets.md
refit                 fits a preset's figures to measurements of one's own
"""
