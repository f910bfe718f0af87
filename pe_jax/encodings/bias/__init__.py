"""Biases: numbers of the offset that are added to the logits."""
