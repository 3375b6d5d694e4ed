"""What stands around an attention: block, positions, and the models made of them. None knows a variant's name."""
