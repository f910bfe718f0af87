"""How fast does onnxruntime run exported encoders, beside PyTorch?

    python benchmarks/onnx_inference.py --init=BERT --encodings=learned_relative,rope --out=FILE

Replaces the positions of a published BERT by each encoding, newly initialized, exports it with
`interop.save_onnx`, and prints a table: the largest difference from pe_jax of the largest hidden
state, the size of model.onnx, and the time of onnxruntime over the time of the unchanged BERT in
transformers, for each --shapes (batch × length), the median of --rounds in which both run in turn
(in brackets the smallest and the largest ratio). Both use --threads. It needs the extras onnx and
parity, and jax2onnx.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from pe_jax import interop
from pe_jax.models import Bert
from pe_jax.trainer.data import load_tokenizer

_INIT = flags.DEFINE_string("init", None, "Folder of a published BERT.", required=True)
_ENCODINGS = flags.DEFINE_list(
    "encodings",
    [
        "learned_absolute",
        "learned_relative",
        "sinusoidal_relative",
        "t5",
        "alibi",
        "rope",
    ],
    "Names without commas in their options.",
)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "float16"], "Of the exported models."
)
_SHAPES = flags.DEFINE_list("shapes", ["1x32", "8x128", "2x512"], "Batch x length.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Of a call of each.")
_THREADS = flags.DEFINE_integer("threads", 1, "Of each library.")


def seconds(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main(_: list[str]) -> None:
    import onnxruntime
    import torch
    import transformers

    torch.set_num_threads(_THREADS.value)
    theirs = transformers.BertModel.from_pretrained(
        _INIT.value, attn_implementation="sdpa"
    ).eval()
    bert = interop.load_encoder(_INIT.value)
    tokenizer = load_tokenizer(Path(_INIT.value) / "tokenizer.json")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS.value
    print(f"| positions | difference | MB | {' | '.join(_SHAPES.value)} |")
    print("|---" * (3 + len(_SHAPES.value)) + "|")
    for name in _ENCODINGS.value:
        config = dataclasses.replace(bert.config, position=name)
        fresh = Bert(config).init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))[
            "params"
        ]
        params = {
            "bert": fresh
            | {k: v for k, v in bert.params["bert"].items() if k != "position"}
        }
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            interop.save_onnx(out, config, params, tokenizer, dtype=_DTYPE.value)
            about, size = (
                json.loads((out / "model.json").read_text()),
                (out / "model.onnx").stat(),
            )
            session = onnxruntime.InferenceSession(out / "model.onnx", options)
        cells = []
        for batch, length in (map(int, shape.split("x")) for shape in _SHAPES.value):
            ids = np.random.default_rng(0).integers(1000, 30000, (batch, length))
            inputs = {
                "input_ids": ids,
                "token_type_ids": 0 * ids,
                "attention_mask": 0 * ids + 1,
            }
            by_place = (
                "input_ids",
                "attention_mask",
                "token_type_ids",
            )  # In transformers.
            tensors = [torch.tensor(inputs[key]) for key in by_place]
            with torch.inference_mode():
                theirs(*tensors), session.run(None, inputs)
                ratios = [
                    seconds(session.run, None, inputs) / seconds(theirs, *tensors)
                    for _ in range(_ROUNDS.value)
                ]
            low, high = min(ratios), max(ratios)
            cells.append(f"{statistics.median(ratios):.2f} ({low:.2f}–{high:.2f})")
        difference = about["difference_from_pe_jax"]
        print(
            f"| `{name}` | {difference:.1e} | {size.st_size / 1e6:.0f} | {' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
