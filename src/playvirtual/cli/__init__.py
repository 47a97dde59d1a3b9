"""The command line: one file per group of commands, which read flags, call the library and print what it returns."""
