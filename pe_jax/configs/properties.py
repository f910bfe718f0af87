"""The properties of position encodings, measured: tables, figures 1 to 7, probes.

Command:  python eval.py --config=configs/properties.py --workdir=RUN --out=R
          python eval.py --config=configs/properties.py --runs='RUNS/*' --out=R
          python eval.py --config=configs/properties.py --encodings=all --out=R    (with table 1)
          python eval.py --config=configs/properties.py --checkpoints=MODEL_FOLDER --out=R
Hardware: one CPU.
Time:     a minute or two for a run of a small BERT.
"""

from ml_collections import ConfigDict

from pe_jax.properties.position_regression import RIDGE


def get_config():
    config = ConfigDict()
    config.task = "properties"
    config.parts = ""  # Separated by commas; empty means all that apply. See the README.
    config.length = 128  # Positions to measure, or all of a shorter encoding.
    config.windows = (5, 10, 20, 50)  # Offsets of local monotonicity.
    config.seed = 0  # Draws the random words.

    config.attention = "logits"  # Of identical words, before scaling; or softmaxed "weights".
    config.heads = "average"  # Figures of it, or of "each" head.
    config.layer = 0  # Whose attention.
    config.words = 300  # Random ones, each repeated for an input.

    # Offset kernel, in the same number of inputs: "words", copies of one word whose queries meet
    # the keys of copies of another, or "texts" of random words as the model itself attends to them.
    config.kernel = "words"

    config.texts = 64  # Trained models are measured on as many: of a run, its held-out ones.
    config.text = ""  # Of others: a source as config.data.source of training; empty: pydoc.

    # Untrained encodings (and table 1): the sizes of the BERT around them.
    config.size = "base"
    config.seeds = 3  # Random models that table 1 averages over.
    config.table_window = 10  # Offsets of its local monotonicity.

    config.bands = 4  # Of the frequencies of a rotary encoding, equally large.
    config.massive = 5.0  # Massive values of queries and keys: as many times their head's mean.

    config.ridge = RIDGE  # Penalties of the regression probe.
    config.family = ""  # For tables whose file does not tell: bert, roberta or gpt2.
    config.score_examples = 256  # Held-out examples that each checkpoint is scored on.
    config.scores = ""  # CSV of scores to correlate with; empty uses the runs' held-out scores.
    config.vector = ""  # "pdf" or "svg" writes every figure in that format as well.
    return config
