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
    config.model.sinusoid_scale = 0.03
    config.model.max_length = 128
    config.model.dropout_rate = 0.0  # Far less than one epoch: nothing to overfit.
    config.model.attention_dropout_rate = 0.0
    config.data.source = "books/train-*.jsonl.xz"
    config.data.validation = "books/valid.jsonl.xz"
    config.data.vocab_size = 4096
    config.stage1.length = 128
    config.stage1.batch_size = 8
    config.stage1.steps = 2500
    config.optimizer.learning_rate = 1e-3
    config.log_every = 100
    config.eval_every = 1250
    config.eval_examples = 1024
    config.checkpoint_every = 1_250
    return config
