"""Export of a model as a StableHLO program, which JAX runs without pe_jax and Flax.

Shapes: B batch, L length, D hidden size, C classes; B and L are free when the program runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.encodings import Params
from pe_jax.errors import extra
from pe_jax.interop.bert_export import new_folder, with_special_tokens
from pe_jax.models import Bert, BertConfig, BertForClassification, BertForSpans
from pe_jax.shapes import Array, Bool, Int

FORMAT = 1
PLATFORMS = ("cpu", "cuda", "tpu")
_TOLERANCE = 2e-5  # Relative to the largest output.

# `(tokens [B, L] int32, token_type_ids [B, L] int32, mask [B, L] bool) ->` outputs, float32.
Model = Callable[[Int[Array, "B L"], Int[Array, "B L"], Bool[Array, "B L"]], tuple[jax.Array, ...]]


def save_stablehlo(
    folder: str | Path,
    config: BertConfig,
    params: Params,
    tokenizer: Tokenizer,
    *,
    labels: Sequence[str] = (),
) -> str:
    """Write a folder with a model as a versioned StableHLO program of `jax.export`.

    `model.stablehlo` has the weights; `jax.export.deserialize` reads it for as long as JAX's
    compatibility guarantees hold. It takes `tokens` and `token_type_ids`, int32 [B, L], and `mask`,
    bool [B, L], and gives what `model.json` says: hidden states [B, L, D], or logits of the
    fine-tuned head, float32. `tokenizer.json` and a README lie next to it. The folder appears whole
    or not at all.

    Args:
      params: of `BertForClassification` or `BertForSpans`, whose heads are exported; of any other
        model with the encoder under "bert", which then is exported alone.
      labels: names of the classes of a classifier.

    Returns:
      The names of the outputs, with their shapes.

    Raises:
      ValueError: if the folder is not empty or not local, an encoding needs a length that is known
        while compiling, or the program does not reproduce the model.
    """
    model, outputs = _model(config, params)
    inputs = {"tokens": "int32", "token_type_ids": "int32", "mask": "bool"}
    rows = config.encoding().max_length
    bounds = ["l >= 2", *([f"l <= {rows}"] if rows else [])]
    batch, length = jax.export.symbolic_shape("b, l", constraints=bounds)
    shapes = [jax.ShapeDtypeStruct((batch, length), dtype) for dtype in inputs.values()]
    exported = jax.export.export(jax.jit(model), platforms=PLATFORMS)(*shapes)
    with extra("stablehlo", ValueError):
        try:
            program = exported.serialize()
        except ImportError as error:
            raise ModuleNotFoundError(str(error), name="flatbuffers") from error
    _check(model, program, config, rows)
    about = {
        "format": FORMAT,
        "position": config.encoding().name,
        "inputs": {name: f"{dtype} [B, L]" for name, dtype in inputs.items()},
        "outputs": outputs,
        "labels": list(labels),
        "max_length": rows,
        "platforms": PLATFORMS,
        "sha256": hashlib.sha256(program).hexdigest(),
    }  # fmt: skip
    with new_folder(folder) as temporary:
        (temporary / "model.stablehlo").write_bytes(program)
        (temporary / "model.json").write_text(json.dumps(about, indent=1) + "\n")
        with_special_tokens(tokenizer).save(str(temporary / "tokenizer.json"))
        (temporary / "README.md").write_text(_README, encoding="utf-8")
    return ", ".join(f"{name} {shape}" for name, shape in outputs.items())


def _model(config: BertConfig, params: Params) -> tuple[Model, dict[str, str]]:
    """Return the model as a function, with its weights, and the shapes of its outputs."""
    config = dataclasses.replace(config, dropout_rate=0.0, attention_dropout_rate=0.0)
    module: Bert | BertForClassification | BertForSpans = Bert(config)
    outputs = {"hidden": f"[B, L, {config.hidden_size}]"}
    variables = {"params": params["bert"]}
    if "classifier" in params:
        classes = len(params["classifier"]["bias"])
        module, outputs = BertForClassification(config, classes), {"logits": f"[B, {classes}]"}
        variables = {"params": params}
    elif "spans" in params:
        module, outputs = BertForSpans(config), {"start": "[B, L]", "end": "[B, L]"}
        variables = {"params": params}

    def model(tokens: Array, token_type_ids: Array, mask: Array) -> tuple[jax.Array, ...]:
        out = module.apply(variables, tokens, token_type_ids, mask)
        return tuple(x.astype(jnp.float32) for x in jax.tree.leaves(out))

    return model, outputs


def _check(model: Model, program: bytearray, config: BertConfig, longest: int | None) -> None:
    """Raise ValueError if the program differs from the model on inputs of three lengths."""
    run, rng = jax.export.deserialize(program).call, np.random.default_rng(0)
    for length in sorted({min(length, longest or length) for length in (5, 24, 67)}):
        tokens = rng.integers(config.vocab_size, size=(2, length)).astype(np.int32)
        mask = np.arange(length) < np.array([[length], [length - 2]])
        arguments = tokens, np.zeros_like(tokens), mask
        for ours, theirs in zip(jax.jit(model)(*arguments), run(*arguments), strict=True):
            seen = mask.reshape(*mask.shape, *[1] * (ours.ndim - 2)) if ours.ndim > 1 else True
            seen = seen if ours.shape[:2] == mask.shape else True  # Logits of whole inputs.
            apart = np.where(seen, np.abs(ours - theirs), 0).max()
            error = float(apart / np.where(seen, np.abs(ours), 0).max(initial=1e-30))
            if not error <= _TOLERANCE:
                raise ValueError(
                    f"The exported program differs from the model by {error:.2g} of its largest "
                    f"output on {length} tokens, more than {_TOLERANCE}: nothing is written. "
                    "Please report it, with the encoding."
                )


_README = """# A model as StableHLO

Run it with JAX and tokenizers alone; `model.json` describes inputs and outputs.

```python
import jax, numpy as np
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_padding()
texts = tokenizer.encode_batch(["Where is the exit?", "It is to the left of the stairs."])
tokens, types, mask = (np.array([getattr(t, x) for t in texts], np.int32)
                       for x in ("ids", "type_ids", "attention_mask"))
with open("model.stablehlo", "rb") as file:
    model = jax.export.deserialize(bytearray(file.read()))
outputs = jax.jit(model.call)(tokens, types, mask.astype(bool))
```
"""
