"""Models as programs: functions of arrays with the weights in them, exported as StableHLO.

Shapes: B batch, L length, D hidden size, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.errors import extra
from pe_jax.common.shapes import Array, Bool, Int
from pe_jax.encodings import Params
from pe_jax.interop.export_folder import check_folder, new_folder, save_program
from pe_jax.models import (
    Bert,
    BertConfig,
    BertForClassification,
    BertForSpans,
    BertForTokens,
)

# `(tokens [B, L] int32, token_type_ids [B, L] int32, mask [B, L] bool) ->` outputs, float32.
Model = Callable[
    [Int[Array, "B L"], Int[Array, "B L"], Bool[Array, "B L"]], tuple[jax.Array, ...]
]
# The same outputs from the exported program.
Program = Callable[[np.ndarray, np.ndarray, np.ndarray], Sequence[np.ndarray]]
PLATFORMS = ("cpu", "cuda", "tpu")


def model_function(config: BertConfig, params: Params) -> tuple[Model, dict[str, str]]:
    """Return a model as a function, and the shapes of its outputs by name.

    Args:
      params: of `BertForClassification`, `BertForSpans` or `BertForTokens`, whose heads are
        included; of any other model with the encoder under "bert", which then is taken alone.
    """
    config = dataclasses.replace(config, dropout_rate=0.0, attention_dropout_rate=0.0)
    module: Bert | BertForClassification | BertForSpans | BertForTokens
    if "classifier" in params:
        classes = len(params["classifier"]["bias"])
        module = BertForClassification(config, classes)
        outputs = {"logits": f"[B, {classes}]"}
    elif "tokens" in params:
        classes = len(params["tokens"]["bias"])
        module = BertForTokens(config, classes)
        outputs = {"logits": f"[B, L, {classes}]"}
    elif "spans" in params:
        module = BertForSpans(config)
        outputs = {"start": "[B, L]", "end": "[B, L]"}
    else:
        module = Bert(config)
        outputs = {"hidden": f"[B, L, {config.hidden_size}]"}
        params = params["bert"]

    def model(
        tokens: Array, token_type_ids: Array, mask: Array
    ) -> tuple[jax.Array, ...]:
        out = module.apply({"params": params}, tokens, token_type_ids, mask)
        return tuple(x.astype(jnp.float32) for x in jax.tree.leaves(out))

    return model, outputs


def symbolic_inputs(config: BertConfig) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the inputs for any B, and any L from 2 to the rows of the encoding."""
    longest = config.encoding().max_length
    bounds = ["length >= 2"]
    if longest:
        bounds.append(f"length <= {longest}")
    shape = jax.export.symbolic_shape("batch, length", constraints=bounds)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    return [ids, ids, jax.ShapeDtypeStruct(shape, bool)]


def check_program(
    config: BertConfig, params: Params, program: Program, tolerance: float = 2e-5
) -> float:
    """Compare an exported program with the model, on random inputs of three lengths.

    Returns:
      the largest difference from the model's outputs, of the largest of these, padding aside.

    Raises:
      ValueError: if it is above `tolerance`.
    """
    model, outputs = model_function(config, params)
    longest = config.encoding().max_length
    rng = np.random.default_rng(0)
    errors = []
    for length in sorted({min(length, longest or length) for length in (5, 24, 67)}):
        tokens = rng.integers(config.vocab_size, size=(2, length)).astype(np.int32)
        mask = np.arange(length) < np.array([[length], [length - 2]])
        arguments = tokens, np.zeros_like(tokens), mask
        results = zip(jax.jit(model)(*arguments), program(*arguments), strict=True)
        for shape, (ours, theirs) in zip(outputs.values(), results, strict=True):
            if shape.startswith("[B, L"):
                ours = np.asarray(ours)[mask]
                theirs = np.asarray(theirs)[mask]
            largest = max(np.abs(ours).max(), 1e-30)
            errors.append(float(np.abs(ours - theirs).max() / largest))
    error = float(np.max(errors))  # NaN if one is.
    if not error <= tolerance:
        raise ValueError(
            f"The exported program differs from the model by {error:.2g} of its largest output, "
            f"more than {tolerance:g}: nothing is written. Please report it, with the encoding "
            f"{config.encoding().name!r}."
        )
    return error


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
      params: as of `model_function`.
      labels: names of the classes of a classifier.

    Returns:
      The names of the outputs, with their shapes.

    Raises:
      ValueError: if the folder is not empty or not local, an encoding needs a length that is known
        while compiling, or the program does not reproduce the model.
    """
    check_folder(folder)
    model, outputs = model_function(config, params)
    exported = jax.export.export(jax.jit(model), platforms=PLATFORMS)(
        *symbolic_inputs(config)
    )
    with extra("stablehlo", ValueError):
        try:
            program = exported.serialize()
        except ImportError as error:
            raise ModuleNotFoundError(str(error), name="flatbuffers") from error
    check_program(config, params, jax.export.deserialize(program).call)
    about = {
        "position": config.encoding().name,
        "inputs": {
            "tokens": "int32 [B, L]",
            "token_type_ids": "int32 [B, L]",
            "mask": "bool [B, L]",
        },
        "outputs": outputs,
        "labels": list(labels),
        "max_length": config.encoding().max_length,
        "platforms": PLATFORMS,
    }
    with new_folder(folder) as temporary:
        return save_program(temporary, "model.stablehlo", program, about, tokenizer)
