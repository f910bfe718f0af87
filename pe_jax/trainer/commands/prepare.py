"""Tokenize a text into a folder, for training elsewhere or many times.

pe-jax prepare --source='books/*.jsonl.xz' --vocab=tokenizer.json --out=FOLDER
pe-jax prepare --source=tfds:wiki40b/en:train --vocab=tokenizer.json --out=FOLDER

To train: --config.data.source=tokenized:FOLDER.
"""

from __future__ import annotations

import functools
import re

from absl import flags

from pe_jax.common.files import to_path
from pe_jax.trainer.console import command
from pe_jax.trainer.console.terminal import show

_FLAGS = flags.FlagValues()
_string = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_SOURCE = _string(
    "source",
    None,
    "As config.data.source: a path or glob of .txt or .jsonl, or tfds:NAME:SPLIT.",
    required=True,
)
_VOCAB = _string("vocab", None, "A tokenizer.json or vocab.txt.", required=True)
_OUT = _string("out", None, "A new folder.", required=True)
_FEATURE = _string(
    "feature", "text", "Key of the text in JSON lines and tfds examples."
)
_DATA_DIR = _string("data_dir", "", "Folder of tfds datasets; empty: tfds's default.")


def run() -> None:
    from pe_jax.trainer import data

    try:
        tokenizer = data.load_tokenizer(_VOCAB.value)
        corpus = data.open_corpus(
            _SOURCE.value, feature=_FEATURE.value, data_dir=_DATA_DIR.value
        )
        tokens = len(data.prepare(corpus, tokenizer, to_path(_OUT.value)).tokens)
    except ValueError as error:
        # The flags of this command are named after these keys.
        message = str(error).replace("--config.data.", "--")
        raise ValueError(re.sub("^source=", "--source=", message)) from None
    show(f"{tokens:,} tokens; train with --config.data.source=tokenized:{_OUT.value}")


def main() -> None:
    command.main(run, _FLAGS, __doc__ or "")


if __name__ == "__main__":
    main()
