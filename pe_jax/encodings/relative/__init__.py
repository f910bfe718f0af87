"""Relative positions: vectors of the offset that meet queries, keys and values."""
