"""What is measured rather than asserted: how good, how fast, beside the bars and the published programs."""
