"""The learning agents: `act` and `update`, nothing more."""
