"""The command line: how a command starts and fails, what it prints, compiled programs it reuses."""
