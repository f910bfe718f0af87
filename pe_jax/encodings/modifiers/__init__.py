"""Changes of other encodings: positions that move, windows, temperature."""
