"""Training: state and step, optimizer, devices, checkpoints, logs, and the loop over them."""
