"""Fine-tuning on SQuAD v1.1 or v2.0: the span of a context that answers (paper, table 3).

Five seeds in one program; each seed's best score of every 1,000 steps counts, as in the paper.

Command:  python train.py --config=configs/squad.py --config.init=RUN --workdir=W
          for v2.0: --config.version=v2.0 --config.data.train=squad/v2.0:train \
              --config.data.validation=squad/v2.0:validation
          other questions with SQuAD's features: --config.data.train=squad_shifts:new_wiki+reddit
Hardware: for BERT-base one GPU or TPU; for a mini BERT two CPU cores.
"""

from pe_jax.configs import defaults


def get_config():
    config = defaults.finetuning()
    config.task = "squad"
    config.version = "v1.1"  # Or "v2.0", where a question may have no answer.
    config.data.train = "squad/v1.1:train"  # NAME:SPLIT+SPLIT of tfds, or an official JSON file.
    config.data.validation = "squad/v1.1:validation"
    config.data.length = 384
    config.data.buckets = (128, 192, 256)
    config.data.stride = 128  # Tokens between the starts of windows of a long context.
    config.data.max_query = 64  # Questions are truncated to this many tokens.
    config.optimizer.learning_rate = 3e-5
    config.n_best = 20
    config.max_answer_tokens = 30
    config.null_threshold = 0.0  # v2.0: no answer where its score exceeds the best span's by this.
    config.select = "best"
    config.eval_every = 1_000
    return config
