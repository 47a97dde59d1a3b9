"""Reports: run folders as one page of tables, statistics and plots beside the paper's numbers."""
