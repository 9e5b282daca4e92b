"""Where costs come from: real ranks, or a model of an accelerator."""
