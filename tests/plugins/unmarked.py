"""A file without a variant."""


class Attention:
    """Not marked."""
