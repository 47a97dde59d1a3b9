"""The run folder: configuration, checkpoints, JSONL logs, loggers, and agents loaded from it."""
