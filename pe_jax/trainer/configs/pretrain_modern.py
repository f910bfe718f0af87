"""Pretraining ModernBERT's architecture on local text: Ettin's smallest size on books.

The encoder and its windows (docs/modern.md), packed documents, the masked language model alone with
a mask rate of 30 %, and warmup, stable, decay are ModernBERT's.

Command:  python train.py --config=configs/pretrain_modern.py --workdir=W \
              --config.data.source='books/train-*.jsonl.xz' \
              --config.data.validation='books/valid.jsonl.xz'
Hardware: 2 CPU cores; one GPU. --config.model.size=ettin_32m, ettin_68m or modernbert_base for
          larger ones.
Expected: held-out masked-LM loss of 5.0 for 4 layers of 128 after 1.6 million tokens, where a BERT
          has 6.1; docs/modern-details.md.
"""

from pe_jax.common.schema import config_dict
from pe_jax.models.config import MODERNBERT
from pe_jax.trainer.configs.pretraining import PretrainingConfig


def get_config():
    config = config_dict(PretrainingConfig)
    config.model.size = "ettin_17m"
    config.model.position = MODERNBERT["position"]
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.data.source = "books/train-*.jsonl.xz"
    config.data.validation = "books/valid.jsonl.xz"
    config.data.vocab_size = 2048
    config.data.packed = True
    config.data.mask_rate = 0.3
    config.stage1.update(length=128, batch_size=16, steps=500)
    config.stage2.update(length=256, batch_size=8, steps=100)
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "wsd"
    config.optimizer.b2 = 0.98
    config.log_every = 100
    config.eval_every = 300
    config.eval_examples = 512
    config.checkpoint_every = 300
    return config
