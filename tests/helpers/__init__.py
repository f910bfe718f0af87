"""Data, runs, models and commands that several test files share."""
