"""What a run shows: evaluation reports, plots, pages, and what is logged in MLflow."""

PHASE_COLOURS = {
    "forward_compute": "#4c72b0",
    "forward_comm": "#9ab3d9",
    "backward_comm": "#f2b48a",
    "backward_compute": "#dd8452",
}
"""Of the phases of a step, in all pictures."""
