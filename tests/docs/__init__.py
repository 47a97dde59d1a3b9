"""Tests of what people read: the pages and their code, the site that is built of them, the notebook."""
