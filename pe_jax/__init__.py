"""Position encodings for JAX and Flax, after "On Position Embeddings in BERT" (ICLR 2021)."""

__version__ = "0.1.0"
