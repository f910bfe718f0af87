"""BERT-base with another position encoding, continued from a checkpoint (paper, table 4).

Length 128 for 5 epochs, then 512 for 2, learning rate 5e-5, batches of 512 sequences. The paper's
first stage has batches of 64, with which 16 chips would wait most of the time; for its results give
--config.stage1.batch_size=64. The encoder and heads come from `config.init`, a published BERT as in
the paper or a run; its position encoding is replaced by `config.model.position`. Text: what the
paper used cannot be redistributed, so give your own.

Command:  python train.py --config=configs/pretrain_base.py --workdir=W --config.init=BERT \
              --config.model.position=learnable_sinusoidal_relative \
              --config.data.source=tokenized:TEXT
Data:     BERT and TEXT are made by three commands: docs/tpu.md.
Hardware: TPU v5e-16 or 8 GPUs of 80 GB; on fewer chips set stage2.accumulation.
Time:     not measured: no such machine was available.
Expected: the paper's tables 2 and 3 after fine-tuning; no figure of ours yet.
"""

from pe_jax.common.schema import config_dict
from pe_jax.trainer.configs.pretraining import PretrainingConfig


def get_config():
    config = config_dict(PretrainingConfig)
    config.model.size = "base"
    config.model.max_length = 512
    config.model.dtype = "bfloat16"
    config.data.source = "tfds:wikipedia/20230601.en:train"
    config.data.held_out = 0.001
    config.data.workers = 8
    config.parallel = "auto"  # Gradients in bfloat16 on TPUs; as by default elsewhere.
    config.stage1.update(length=128, epochs=5.0, batch_size=512)
    config.stage2.update(length=512, epochs=2.0, batch_size=512)
    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup = 0.01
    config.eval_every = 10_000
    config.checkpoint_every = 5_000
    return config
