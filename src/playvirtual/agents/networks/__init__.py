"""The networks of the agents."""
