"""Tokenize a corpus into shards for training, on any runner of Apache Beam (the extra `beam`).

python -m pe_jax.data.prepare --source='books/*.jsonl.xz' --vocab=tokenizer.json --out=SHARDS
python -m pe_jax.data.prepare --source=tfds:wiki40b/en:train --vocab=tokenizer.json \\
    --out=gs://BUCKET/SHARDS -- --runner=DataflowRunner --project=P --region=R ...

What follows `--` are Beam's own options. To train: --config.data.source=shards:OUT.
"""

from __future__ import annotations

import functools
import re

from absl import flags

from pe_jax.console import command
from pe_jax.console.streams import show
from pe_jax.errors import extra

_FLAGS = flags.FlagValues()
_string = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_SOURCE = _string(
    "source",
    None,
    "As config.data.source: a path or glob of .txt or .jsonl, or tfds:NAME:SPLIT.",
    required=True,
)
_VOCAB = _string("vocab", None, "A tokenizer.json or vocab.txt.", required=True)
_OUT = _string("out", None, "A new folder, which all workers can write to.", required=True)
_FEATURE = _string("feature", "text", "Key of the text in JSON lines and tfds examples.")
_DATA_DIR = _string("data_dir", "", "Folder of tfds datasets; empty: tfds's default.")
_EXAMPLES = flags.DEFINE_integer(
    "examples", 20_000, "Examples of a tfds dataset in one shard.", 1, flag_values=_FLAGS
)


def run(*beam_options: str) -> None:
    with extra("beam", lambda missing: SystemExit(f"error: {missing}")):
        from apache_beam.options.pipeline_options import PipelineOptions

        from pe_jax.data import beam
        from pe_jax.data.tokenizer import load_tokenizer
    try:
        beam.prepare(
            _SOURCE.value,
            load_tokenizer(_VOCAB.value),
            _OUT.value,
            PipelineOptions([*beam_options]),
            feature=_FEATURE.value,
            data_dir=_DATA_DIR.value,
            examples=_EXAMPLES.value,
        )
    except ValueError as error:
        # The flags of this command are named after these keys.
        message = str(error).replace("--config.data.", "--")
        raise ValueError(re.sub("^source=", "--source=", message)) from None
    show(f"Written to {_OUT.value}; train with --config.data.source=shards:{_OUT.value}")


def main() -> None:
    hint = "Put Beam's own options after --."
    command.main(run, _FLAGS, __doc__ or "", arguments_hint=hint)


if __name__ == "__main__":
    main()
