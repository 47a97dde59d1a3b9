"""Agents: what training needs of one (`agent.py`), and one file per agent."""
