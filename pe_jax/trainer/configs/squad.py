"""Fine-tuning on SQuAD v1.1 or v2.0: the span of a context that answers (paper, table 3).

Five seeds in one program; each seed's best score of every 1,000 steps counts, as in the paper.

Command:  python train.py --config=configs/squad.py --config.init=RUN --workdir=W
          for v2.0: --config.version=v2.0 --config.data.train=squad/v2.0:train \
              --config.data.validation=squad/v2.0:validation
          other questions with SQuAD's features: --config.data.train=squad_shifts:new_wiki+reddit
Hardware: for BERT-base one GPU or TPU; for a mini BERT two CPU cores.
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.finetuning import SquadConfig


def get_config():
    config = config_dict(SquadConfig)
    config.data.length = 384
    config.data.buckets = (128, 192, 256)
    config.optimizer.learning_rate = 3e-5
    config.select = "best"
    config.eval_every = 1_000
    return config
