"""A package that ships a variant of attention."""
