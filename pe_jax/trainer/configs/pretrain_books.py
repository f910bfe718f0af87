"""Pretraining on local text: a mini BERT on books, for a CPU or one GPU.

Short sequences first, then long ones, as the paper does with 128 and 512: attention learns to use
positions in a few hundred steps with 16 tokens, and far more slowly with 64.

Command:  python train.py --config=configs/pretrain_books.py --workdir=W \
              --config.data.source='books/train-*.jsonl.xz' \
              --config.data.validation='books/valid.jsonl.xz' \
              --config.model.position=learned_relative
Hardware: 2 CPU cores; one GPU.
Time:     9 to 12 minutes on one CPU core next to another such run.
Absolute sinusoids want the size of fresh word embeddings, not of trained ones:
--config.model.position='sinusoidal_absolute(scale=0.03)'.
Expected: held-out masked-LM loss of 4.4 to 5.0 with positions, 5.5 without; docs/studies.md.
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.pretraining import PretrainingConfig


def get_config():
    config = config_dict(PretrainingConfig)
    config.model.size = "mini"
    config.model.max_length = 64
    config.model.dropout_rate = 0.0  # Far less than one epoch: nothing to overfit.
    config.model.attention_dropout_rate = 0.0
    config.data.source = "books/train-*.jsonl.xz"
    config.data.validation = "books/valid.jsonl.xz"
    config.data.vocab_size = 2048
    config.stage1.update(length=16, batch_size=128, steps=500)
    config.stage2.update(length=64, batch_size=32, steps=500)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.b2 = 0.98
    config.log_every = 100
    config.eval_every = 250
    config.eval_examples = 1024
    config.checkpoint_every = 500
    return config
