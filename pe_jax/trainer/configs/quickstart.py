"""Quickstart: a small BERT learns positions from text that comes with the package.

Command:  python train.py --config=configs/quickstart.py --workdir=runs/quickstart
Hardware: 2 CPU cores.
Time:     about two minutes.
Expected: masked-LM accuracy 27 % on held-out text, against 7.5 % for the most frequent token;
          next-sentence accuracy still at chance.

With the encoding of the paper instead, accuracy is 24 %:
--config.model.position=learned_absolute+learnable_sinusoidal_relative
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.pretraining import PretrainingConfig


def get_config():
    config = config_dict(PretrainingConfig)
    config.model.size = "tiny"
    config.model.position = "rope"
    config.model.max_length = 128
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.data.source = "pydoc"
    config.data.vocab_size = 4096
    config.data.held_out = 0.1
    config.stage1.update(length=128, batch_size=32, steps=450)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.b2 = 0.98
    config.log_every = 75
    config.eval_every = 225
    config.eval_examples = 256
    config.checkpoint_every = 225
    return config
