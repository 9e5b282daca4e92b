"""What a run decides: its warm start, contestants, held-out tables, the champion, and whether retraining is due."""
