"""Pretraining on local text: a mini BERT on books, for a CPU or one GPU.

Command:  python train.py --config=configs/pretrain_books.py --workdir=W \
              --config.data.source='books/train-*.jsonl.xz' \
              --config.data.validation='books/valid.jsonl.xz' \
              --config.model.position=learned_relative
Hardware: 2 CPU cores, or one GPU.
Time:     (from measurement)
Expected: (from measurement)
"""

from configs import defaults


def get_config():
    config = defaults.pretraining()
    config.model.size = "mini"
    config.model.max_length = 128
    config.model.dropout_rate = 0.0  # Far less than one epoch: nothing to overfit.
    config.model.attention_dropout_rate = 0.0
    config.data.source = "books/train-*.jsonl.xz"
    config.data.validation = "books/valid.jsonl.xz"
    config.data.vocab_size = 8192
    config.stage1.length = 128
    config.stage1.batch_size = 16
    config.stage1.steps = 3000
    config.optimizer.learning_rate = 1e-3
    config.log_every = 100
    config.eval_every = 500
    config.eval_examples = 512
    config.checkpoint_every = 1_000
    return config
