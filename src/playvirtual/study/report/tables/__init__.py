"""The tables of a report: scores and comparisons, ablations, analyses, and how a table is written."""
