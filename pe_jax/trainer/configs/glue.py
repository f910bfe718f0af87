"""Fine-tuning on GLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli (paper, table 2).

Five seeds in one program, the paper's settings. Data: the tfds datasets `glue/*`, prepared as
array_record; scores are of the validation split, official metrics in points.

Command:  python train.py --config=configs/glue.py --config.task=cola --config.init=RUN --workdir=W
Hardware: for BERT-base one GPU or TPU; for a mini BERT two CPU cores.
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.finetuning import FinetuningConfig


def get_config():
    config = config_dict(FinetuningConfig)
    config.task = "cola"
    return config
