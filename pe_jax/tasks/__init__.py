"""What to train: pretraining and fine-tuning, from a config to a trained run."""
