"""Training: the loop, the learner, evaluation, and the runner that puts a run folder around them."""
