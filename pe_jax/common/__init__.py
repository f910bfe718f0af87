"""What the packages share: checks, errors, files, records, shapes and shims of JAX."""
