"""Fine-tuning on tagging: a label for each word, such as named entities or parts of speech.

Files have a word a line in columns, and an empty line after each sentence, as CoNLL's; or a dataset
of tfds has features of words and labels. Scores are F1 of entities, or accuracy of plain tags.

Command:  python train.py --config=configs/tagging.py --config.init=RUN --workdir=W \
              --config.data.train=train.conll --config.data.validation=dev.conll \
              --config.data.test=test.conll
          the second of three columns: --config.data.label_column=1
Hardware: for BERT-base one GPU or TPU; for MiniLM two CPU cores.
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.finetuning import TaggingConfig


def get_config():
    config = config_dict(TaggingConfig)
    config.optimizer.learning_rate = 1e-4
    return config
