"""Output of a run: evaluation reports, and pages."""
