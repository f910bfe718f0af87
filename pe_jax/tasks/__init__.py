"""What to train and how to score it."""
