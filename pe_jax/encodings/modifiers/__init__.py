"""What changes other encodings, or joins them: positions that move, reach, temperature."""

from pe_jax.encodings.modifiers.moved_positions import cape, interpolated, shape
from pe_jax.encodings.modifiers.randomised import randomised
from pe_jax.encodings.modifiers.temperature import log_n
from pe_jax.encodings.modifiers.window import causal, window

__all__ = ["cape", "causal", "interpolated", "log_n", "randomised", "shape", "window"]
