"""Absolute positions: what is added to the embeddings, or meets in the logits, at each position."""
