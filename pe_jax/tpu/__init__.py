"""What a config would take on TPUs that need not be attached: it is compiled, not trained."""
