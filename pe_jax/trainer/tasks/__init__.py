"""Training tasks: pretraining and fine-tuning, from a config to a trained run."""
