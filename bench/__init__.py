"""attn-bench: measures attention variants inside one common Transformer block."""

__version__ = "0.1.0"
