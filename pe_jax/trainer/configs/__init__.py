"""Experiments: each file with a `get_config()` is one; the other files declare the keys."""
