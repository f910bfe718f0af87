"""Export of a model as a StableHLO program, which JAX runs without pe_jax and Flax."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
from tokenizers import Tokenizer

from pe_jax.encodings import Params
from pe_jax.errors import extra
from pe_jax.interop.export_folder import check_folder, new_folder, save_program
from pe_jax.interop.model_function import check_program, model_function, symbolic_inputs
from pe_jax.models import BertConfig

PLATFORMS = ("cpu", "cuda", "tpu")


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
    exported = jax.export.export(jax.jit(model), platforms=PLATFORMS)(*symbolic_inputs(config))
    with extra("stablehlo", ValueError):
        try:
            program = exported.serialize()
        except ImportError as error:
            raise ModuleNotFoundError(str(error), name="flatbuffers") from error
    check_program(config, params, jax.export.deserialize(program).call)
    kinds = {"tokens": "int32", "token_type_ids": "int32", "mask": "bool"}
    about = {
        "position": config.encoding().name,
        "inputs": {name: f"{kind} [B, L]" for name, kind in kinds.items()},
        "outputs": outputs,
        "labels": list(labels),
        "max_length": config.encoding().max_length,
        "platforms": PLATFORMS,
    }
    with new_folder(folder) as temporary:
        return save_program(temporary, "model.stablehlo", program, about, tokenizer)
