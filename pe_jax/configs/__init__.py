"""Experiments: each file is one, its `get_config()` a ConfigDict; `defaults` has every key."""
