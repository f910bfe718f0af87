"""Tagging by encoders that differ in their positions alone."""
