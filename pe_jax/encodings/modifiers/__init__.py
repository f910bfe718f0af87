"""What changes other encodings, or joins them: positions that move, reach, temperature."""
