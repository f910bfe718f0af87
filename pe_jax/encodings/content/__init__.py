"""Positions that depend on what the tokens are."""
