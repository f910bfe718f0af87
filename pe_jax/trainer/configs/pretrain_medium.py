"""BERT-medium (8 layers of 512) from scratch (paper, section 4.2 and table 4).

Length 128 for 10 epochs in batches of 128, then 512 for 2 epochs in batches of 512, learning rate
5e-5: the run behind the paper's figures 1 and 5. The first stage's batches are small for eight
chips, which would wait for most of a step (docs/tpu-estimates.md).

Command:  python train.py --config=configs/pretrain_medium.py --workdir=W \
              --config.model.position=learned_absolute --config.data.source=tokenized:TEXT
Data:     TEXT, with the vocabulary, is made by two commands: docs/tpu.md.
Hardware: TPU v5e-8 or 4 GPUs of 40 GB; on fewer chips raise stage2.accumulation.
Time:     not measured: no such machine was available.
Expected: the paper's figures 1 and 5; no figure of ours yet.
"""

from pe_jax.trainer.configs import pretrain_base


def get_config():
    config = pretrain_base.get_config()
    config.model.size = "medium"
    config.stage1.update(epochs=10.0, batch_size=128)
    config.stage2.accumulation = 2
    config.keep_checkpoints = 100  # Figure 5 shows P·Pᵀ across them.
    return config
