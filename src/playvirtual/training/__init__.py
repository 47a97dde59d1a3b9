"""Training: one loop for every agent, with its evaluation, run folder and progress display."""
