"""Quickstart: a small BERT learns positions from the text that every Python carries.

Command:  python train.py --config=configs/quickstart.py --workdir=/tmp/quickstart
Hardware: 2 CPU cores.
Time:     about two minutes.
Expected: (filled in from measurement)
"""

from configs import defaults


def get_config():
    config = defaults.pretraining()
    config.model.size = "tiny"
    config.model.position = "learned_absolute+learnable_sinusoidal_relative"
    config.model.sinusoid_scale = 0.03
    config.model.max_length = 128
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.data.source = "pydoc"
    config.data.vocab_size = 4096
    config.data.held_out = 0.1
    config.stage1.length = 128
    config.stage1.batch_size = 32
    config.stage1.steps = 1000
    config.optimizer.learning_rate = 1e-3
    config.log_every = 100
    config.eval_every = 250
    config.eval_examples = 256
    config.checkpoint_every = 500
    return config
