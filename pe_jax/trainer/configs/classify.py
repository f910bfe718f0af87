"""Fine-tuning on your own texts and labels: a table of CSV, TSV or JSON lines.

Scores are accuracy and the mean F1 of the classes, in points, on config.data.validation, or on a
tenth of the rows.

Command:  python train.py --config=configs/classify.py --config.init=RUN --workdir=W \
              --config.data.train=train.csv --config.data.validation=validation.csv
          columns of other names: --config.data.texts="('question','answer')" --config.data.label=y
Hardware: for BERT-base one GPU or TPU; for MiniLM two CPU cores.
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.finetuning import ClassificationConfig


def get_config():
    config = config_dict(ClassificationConfig)
    config.seeds = (0,)
    config.optimizer.learning_rate = 1e-4
    return config
