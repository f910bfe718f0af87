"""Positions that depend on the content of tokens."""
