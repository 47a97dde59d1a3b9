"""The families of environments that come with the package, one file each; `registry.py` knows their names."""
