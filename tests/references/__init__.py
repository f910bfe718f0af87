"""The encodings as formulas for one pair of query and key, written as their papers write them."""
