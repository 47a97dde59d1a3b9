"""Sharing trained agents: model cards, and a model hub."""
