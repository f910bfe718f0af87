"""Length generalisation: trained on short strings, tested on longer ones (docs/measures).

Command:  python eval.py --config=configs/length_generalisation.py --out=R \
              --encodings=none,rope,alibi,t5 --config.tasks=reverse_string,copy
Hardware: 2 CPU cores; one GPU.
Time:     about a minute for each encoding and task, three seeds at once. A stopped suite continues:
          what is done is in R/cells.
"""

from ml_collections import ConfigDict


def get_config():
    config = ConfigDict()
    config.task = "length_generalisation"
    config.tasks = ""  # Separated by commas; empty means all 19.
    config.seeds = (0, 1, 2)  # Of parameters and data; one program.
    config.length = 20  # Symbols of the longest training inputs.
    config.test_lengths = (10, 20, 30, 40, 80, 160)
    config.test_examples = 256  # Of each length.
    config.test_batch_size = 32

    config.model = ConfigDict()
    config.model.num_layers = 2
    config.model.hidden_size = 64
    config.model.num_heads = 4
    config.model.intermediate_size = 256

    config.steps = 1_000
    config.batch_size = 32  # Of each seed.
    config.learning_rate = 3e-3
    config.weight_decay = 0.01
    config.vector = ""  # "pdf" or "svg" writes every figure in that format as well.
    return config
