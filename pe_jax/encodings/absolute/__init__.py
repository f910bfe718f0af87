"""Absolute positions: vectors or logits that depend on each single position."""
