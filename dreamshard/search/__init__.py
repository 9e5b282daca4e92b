"""From a policy and a cost network to the best placement found within a time budget."""
