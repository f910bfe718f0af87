"""Compilation of a config for TPUs that need not be attached: memory, FLOPs, bounds of the time."""
