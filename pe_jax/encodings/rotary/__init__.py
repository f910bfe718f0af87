"""Rotations of queries and keys by their positions."""
