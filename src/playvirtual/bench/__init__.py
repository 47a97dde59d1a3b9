"""What `playvirtual bench` does: timing, profiling, and the table of results."""
