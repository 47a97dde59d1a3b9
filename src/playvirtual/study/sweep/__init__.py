"""Sweeps: the paper's experiments and grids of one's own as lists of runs, planned and carried out."""
