"""An extension as a package outside of `playvirtual` would be: its modules import the public names alone."""
