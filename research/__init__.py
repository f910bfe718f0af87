"""Studies made with pe_jax; not installed with it."""
