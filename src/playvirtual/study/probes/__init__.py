"""Probes: measurements of a trained agent beyond its score."""
