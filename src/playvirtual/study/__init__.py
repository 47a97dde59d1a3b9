"""Studies: what runs have to say, in numbers, pictures and pages."""
