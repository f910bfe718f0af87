"""Changes of other encodings: positions that move, reach, temperature."""
