"""A trained run as a Hugging Face folder, or as an ONNX or StableHLO program."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax

from pe_jax.common.files import read_json
from pe_jax.interop import save_encoder, save_onnx, save_stablehlo
from pe_jax.interop.onnx_export import MODULES
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig
from pe_jax.trainer.data import load_tokenizer
from pe_jax.trainer.data.glue import GLUE
from pe_jax.trainer.tasks.finetuning_task import labels_file
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.workdir import ResolvedConfig, load_config


def export(
    folder: Path,
    out: Path,
    seed: int | None = None,
    format: str = "transformers",
    dtype: str = "float32",
) -> str:
    """Write the newest checkpoint of the run in `folder` to `out`.

    The arguments are the keys of `configs/export.py`.

    Returns:
      What the model is, and the lines that load it.

    Raises:
      ValueError: for a folder without a checkpoint, a seed that the run does not have, or a model
        that cannot be exported in this format.
    """
    if dtype != "float32" and format != "onnx":
        raise ValueError(
            f"config.dtype={dtype!r} needs config.format='onnx', not {format!r}."
        )
    resolved: ResolvedConfig[EncoderTrainingConfig | FinetuningConfig]
    resolved = load_config(folder, TRAINING)
    config = resolved.config
    tokenizer = load_tokenizer(saved_tokenizer(folder))
    step, params = newest_params(folder)
    if isinstance(config, FinetuningConfig):
        index = _index_of_seed(config.seeds, seed)
        params = jax.tree.map(lambda leaf: leaf[index], params)
    elif seed not in (None, config.seed):
        raise ValueError(
            f"{folder} holds a run of seed {config.seed}, but config.seed is {seed}."
        )
    labels: tuple[str, ...] = GLUE[config.task].labels if config.task in GLUE else ()
    if labels_file(folder).is_file():
        way_out = "The command that trained the run writes it again."
        labels = tuple(read_json(labels_file(folder), way_out)["labels"])
    model = dataclasses.replace(resolved.model, vocab_size=tokenizer.get_vocab_size())
    parts = out, model, jax.device_get(params), tokenizer
    of_run = f"of {folder}, step {step:,}"
    more = f"    (more in {out}/README.md)"
    if format == "stablehlo":
        outputs = save_stablehlo(*parts, labels=labels)
        return (
            f"StableHLO {of_run}: {outputs}. In Python, with JAX alone:\n"
            f'  file = open("{out}/model.stablehlo", "rb")\n'
            "  model = jax.export.deserialize(bytearray(file.read()))\n"
            f"  model.call(tokens, token_type_ids, mask){more}"
        )
    if format == "onnx":
        # The folder of sentence-transformers that the encoder was distilled from, if any.
        sentences = None
        use = ""
        if config.init and not isinstance(config, FinetuningConfig):
            source = Path(config.init)
            if (source / MODULES).exists():
                sentences = source
                use = (
                    f'\n  SentenceTransformer("{out}", trust_remote_code=True)'
                    "    for its embeddings"
                )
        outputs = save_onnx(*parts, labels=labels, dtype=dtype, sentences=sentences)
        return (
            f"ONNX {of_run}: {outputs}. In Python, with onnxruntime alone:\n"
            f'  onnxruntime.InferenceSession("{out}/model.onnx"){more}{use}'
        )
    architecture = save_encoder(*parts, labels=labels)
    return (
        f"{architecture} {of_run}. In Python with torch and transformers:\n"
        f'  transformers.{architecture}.from_pretrained("{out}")\n'
        f'  transformers.AutoTokenizer.from_pretrained("{out}")'
    )


def _index_of_seed(seeds: tuple[int, ...], seed: int | None) -> int:
    """Return the index of a seed, which may be None if there is only one."""
    if seed is None and len(seeds) == 1:
        return 0
    if seed is None or seed not in seeds:
        raise ValueError(
            f"config.seed must be one of the run's seeds, {', '.join(map(str, seeds))}; got {seed}."
        )
    return seeds.index(seed)
