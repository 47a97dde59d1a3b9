"""Engines carry out the runs of a sweep: on this machine, or on a Ray cluster."""
