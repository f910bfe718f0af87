"""Export of a model to ONNX, which runs without JAX, and as a model of sentence-transformers."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.errors import extra
from pe_jax.common.files import parse_json
from pe_jax.common.shapes import Array
from pe_jax.encodings import Params
from pe_jax.interop.export_folder import (
    check_folder,
    new_folder,
    save_json,
    save_program,
)
from pe_jax.interop.plain_jax import plain
from pe_jax.interop.programs import check_program, model_function, symbolic_inputs
from pe_jax.models import BertConfig

if TYPE_CHECKING:
    from onnx import ModelProto

# int64 [B, L], as tokenizers give them.
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
# Names of outputs elsewhere.
_OUTPUTS = {"hidden": "last_hidden_state", "start": "start_logits", "end": "end_logits"}
_ON_ELEMENTS = ("Where", "Add", "Sub", "Mul", "Div", "Max", "Min", "And", "Or", "Pow")
MODULES = "modules.json"  # Of sentence-transformers: an encoder and what follows it.
_ENCODER = Path(__file__).with_name("onnx_encoder.py")
# float16 keeps 11 bits, and a dozen layers add up their errors.
_TOLERANCES = {"float32": 2e-5, "float16": 1e-2}
_INSTALL_JAX2ONNX = "pip install --no-deps jax2onnx==0.17.1"


def save_onnx(
    folder: str | Path,
    config: BertConfig,
    params: Params,
    tokenizer: Tokenizer,
    *,
    labels: Sequence[str] = (),
    dtype: str = "float32",
    sentences: Path | None = None,
) -> str:
    """Write a folder with a model as `model.onnx`, for any batch and length.

    The inputs are those of Hugging Face's tokenizers, `INPUTS`, int64 [B, L]. The outputs are
    `last_hidden_state`, or logits of the fine-tuned head, float32. `model.json` describes the
    model; `tokenizer.json` and a README that needs onnxruntime and tokenizers alone lie next to it.
    The folder appears whole or not at all.

    Args:
      params: as of `model_function`.
      labels: names of the classes of a classifier.
      dtype: "float16" halves the file, and computes in float16.
      sentences: a folder of sentence-transformers from which the encoder is. Its pooling is copied,
        and `SentenceTransformer(folder, trust_remote_code=True)` gives embeddings: it runs the
        `onnx_encoder.py` that is written too. `backend="onnx"` would need a config.json of a class
        of transformers, of which none may have these positions.

    Returns:
      The names of the outputs, with their shapes.

    Raises:
      ValueError: if the folder is not empty or not local, an encoding needs a length that is known
        while compiling, jax2onnx cannot convert the model, or the result does not reproduce it.
    """
    check_folder(folder)
    settings = _pooling(sentences) if sentences else {}
    limits = _json(sentences / "sentence_bert_config.json") if sentences else {}
    _, shapes = model_function(config, params)
    outputs = {_OUTPUTS.get(name, name): shape for name, shape in shapes.items()}
    if sentences and "last_hidden_state" not in outputs:
        raise ValueError(
            f"sentences={str(sentences)!r} is for an encoder alone, not {outputs}."
        )
    program, error = _program(config, params, dtype)
    about = {
        "position": config.encoding().name,
        "inputs": {name: "int64 [B, L]" for name in INPUTS},
        "outputs": outputs,
        "dtype": dtype,
        "labels": list(labels),
        "max_length": limits.get("max_seq_length") or config.max_length,
        "pooling": settings,
        "difference_from_pe_jax": error,
    }
    with new_folder(folder) as temporary:
        if sentences:
            _save_modules(temporary, sentences)
        return save_program(temporary, "model.onnx", program, about, tokenizer)


def _program(config: BertConfig, params: Params, dtype: str) -> tuple[bytes, float]:
    """Return the serialized model, and how much it differs from `config` and `params`."""
    # jax2onnx is in no extra: it asks for an older Orbax than pe_jax, and works without it.
    with extra(
        "onnx", lambda missing: ValueError(f"{missing} Then {_INSTALL_JAX2ONNX}.")
    ):
        import onnxruntime
        from onnxruntime.transformers.float16 import convert_float_to_float16
    if importlib.util.find_spec("jax2onnx") is None:
        raise ValueError(
            "jax2onnx is not installed. In a checkout of pe_jax, pip install '.[onnx]', then "
            f"{_INSTALL_JAX2ONNX}."
        )
    import jax2onnx

    # As the formula stands: the other implementations have gradients in mind.
    naive = dataclasses.replace(config, implementation="naive")
    model, outputs = model_function(naive, params)

    def of_integers(
        input_ids: Array, types: Array, mask: Array
    ) -> tuple[jax.Array, ...]:
        return model(input_ids, types, mask != 0)

    shapes = [jax.ShapeDtypeStruct(x.shape, jnp.int32) for x in symbolic_inputs(config)]
    # They warn of plugins whose packages are not installed and of types left to ONNX to infer.
    for name in ("jax2onnx", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        made = jax2onnx.to_onnx(
            plain(of_integers, *shapes),
            shapes,
            input_names=[f"{name}_int32" for name in INPUTS],
            output_names=[_OUTPUTS.get(name, name) for name in outputs],
            model_name="pe_jax",
        )
    except (NotImplementedError, TypeError) as error:
        raise ValueError(
            f"jax2onnx cannot convert {config.encoding().name!r}: {error}"
        ) from error
    if not _has_inner_graph(made):  # It could use what this removes.
        made = _broadcast_late(made)
    if dtype == "float16":
        made = convert_float_to_float16(made, keep_io_types=True)
    _take_int64(made)
    data = made.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        by_name = {}
        for name, x in zip(names, inputs, strict=True):
            by_name[name] = x.astype(np.int64)
        return session.run(None, by_name)

    return data, check_program(config, params, run, _TOLERANCES[dtype])


def _has_inner_graph(model: ModelProto) -> bool:
    """Return whether a node has a graph of its own, as a loop has."""
    for node in model.graph.node:
        if any(attribute.HasField("g") for attribute in node.attribute):
            return True
    return False


def _broadcast_late(model: ModelProto) -> ModelProto:
    """Let operations on elements broadcast operands themselves, as ONNX can and JAX does before.

    In JAX their operands are numbers or have the shape of the result, so one that has its rank and
    is not expanded suffices.
    """
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    graph = model.graph
    sources = {}
    for node in graph.node:
        if node.op_type == "Expand":
            sources[node.output[0]] = node.input[0]
    values = [*graph.value_info, *graph.input, *graph.output]
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
    for node in graph.node:
        own = [ranks.get(name) for name in node.input if name not in sources]
        if node.op_type in _ON_ELEMENTS and ranks.get(node.output[0], -1) in own:
            node.input[:] = [sources.get(name, name) for name in node.input]
    return onnx_ir.to_proto(RemoveUnusedNodesPass()(onnx_ir.from_proto(model)).model)


def _take_int64(model: ModelProto) -> None:
    """Put a cast after each input, so that it is int64, as tokenizers return it."""
    import onnx

    for tensor in model.graph.input:
        inner, tensor.name = tensor.name, tensor.name.removesuffix("_int32")
        tensor.type.tensor_type.elem_type = onnx.TensorProto.INT64
        cast = onnx.helper.make_node(
            "Cast", [tensor.name], [inner], to=onnx.TensorProto.INT32
        )
        model.graph.node.insert(0, cast)


# --- folders of sentence-transformers ---


def _modules_after_encoder(source: Path) -> list[dict[str, Any]]:
    """Return the entries of `modules.json` after the first one, a transformer: pooling and others;
    ValueError for other files, and modules whose code is in the folder."""
    entries = _json(source / MODULES)
    types = [entry["type"] for entry in entries]
    others = [name for name in types if not name.startswith("sentence_transformers.")]
    if others or not types or not types[0].endswith("Transformer"):
        raise ValueError(
            f"{source / MODULES} must begin with a Transformer and have modules of "
            f"sentence-transformers alone, got {', '.join(types) or 'none'}."
        )
    return entries[1:]


def _pooling(source: Path) -> dict[str, Any]:
    """Return the settings of the modules after the encoder, by class."""
    settings: dict[str, Any] = {}
    for module in _modules_after_encoder(source):
        _, _, name = module["type"].rpartition(".")
        settings[name] = {}
        if module["path"]:
            settings[name] = _json(source / module["path"] / "config.json")
    return settings


def _json(file: Path) -> Any:
    return parse_json(file.read_text(encoding="utf-8")) if file.exists() else {}


def _save_modules(folder: Path, source: Path) -> None:
    """Write `modules.json` with `onnx_encoder.py` first, and copy what the other modules read."""
    encoder = {"idx": 0, "name": "0", "path": "", "type": "onnx_encoder.OnnxEncoder"}
    modules = _modules_after_encoder(source)
    save_json(folder / MODULES, [encoder, *modules])
    shutil.copyfile(_ENCODER, folder / _ENCODER.name)
    for module in modules:
        if module["path"] and (source / module["path"]).is_dir():
            shutil.copytree(source / module["path"], folder / module["path"])
    settings = source / "config_sentence_transformers.json"
    if settings.exists():  # Prompts and the similarity.
        shutil.copyfile(settings, folder / settings.name)
