"""The command line: parsing and errors, help, terminal output, signals, the compilation cache."""
