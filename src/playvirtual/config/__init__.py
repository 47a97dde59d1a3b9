"""The configuration of a run: its schema, every number with its source, how it is built, what can be registered."""
