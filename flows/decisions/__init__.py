"""What a run decides: what to start from, whether to promote, which tables are held out, whether retraining is due."""
