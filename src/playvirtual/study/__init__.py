"""Studies of many runs: sweeps that make them, probes that measure them, reports that compare them."""
