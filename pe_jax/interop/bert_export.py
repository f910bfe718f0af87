"""Exports a BERT as a Hugging Face folder, if PyTorch's BERT can represent it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import flax.traverse_util
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, processors

from pe_jax.encodings import Params, Part, embed
from pe_jax.files import is_remote
from pe_jax.interop import layout
from pe_jax.models import BertConfig

# The heads of a model: its class in transformers.
_ARCHITECTURES = {
    (): "BertModel",
    ("pooler",): "BertModel",
    ("pooler", "masked_lm", "next_sentence"): "BertForPreTraining",
    ("pooler", "classifier"): "BertForSequenceClassification",
    ("spans",): "BertForQuestionAnswering",
}
_SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def save_bert(
    folder: str | Path,
    config: BertConfig,
    params: Params,
    tokenizer: Tokenizer,
    *,
    labels: Sequence[str] = (),
) -> str:
    """Write a folder that `from_pretrained` of transformers reads, weights and tokenizer.

    The position encoding becomes a table of `config.max_length` rows, see `position_table`. The
    folder appears whole or not at all.

    Args:
      folder: a local one, new or empty.
      params: of `BertForPretraining`, `BertForClassification` or `BertForSpans`, or from
        `load_bert`: the encoder under "bert", each head under its own name.
      tokenizer: WordPiece, with BERT's special tokens; a copy that adds [CLS] and [SEP] is saved.
      labels: names of the classes of "classifier".

    Returns:
      The name of the class of transformers that loads the folder.

    Raises:
      ValueError: if the folder is not empty or not local, PyTorch's BERT cannot represent the
        position encoding, or the parts do not fit each other; every mismatch is listed, and nothing
        is written.
    """
    folder = _checked_folder(folder)
    heads = _checked_heads(params)
    architecture = _ARCHITECTURES[heads]
    table = position_table(config, params["bert"].get("position", {}))
    tensors, errors = _tensors(config, params, table, heads)
    tokens = tokenizer.get_vocab_size()
    if tokens != config.vocab_size:
        errors.append(f"the tokenizer has {tokens} tokens, the model {config.vocab_size}")
    classes = len(tensors["classifier.bias"]) if "classifier" in heads else 0
    if labels and len(labels) != classes:
        errors.append(f"{len(labels)} labels for a classifier of {classes} outputs")
    if errors:
        raise ValueError("The parts do not make one BERT:\n  " + "\n  ".join(errors))
    if architecture != "BertModel":  # The other classes hold the encoder as a submodule.
        encoder = ("embeddings.", "encoder.", "pooler.")
        tensors = {
            f"bert.{name}" if name.startswith(encoder) else name: tensor
            for name, tensor in tensors.items()
        }
    labels = labels or [f"LABEL_{i}" for i in range(classes)]
    _write(folder, _config(config, tokenizer, architecture, labels), tensors, tokenizer)
    return architecture


def _checked_folder(folder: str | Path) -> Path:
    if is_remote(folder):
        raise ValueError(f"{folder} is not a local folder. Export to one, then copy it there.")
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty. Export to a new folder.")
    return folder


def _checked_heads(params: Params) -> tuple[str, ...]:
    """Return the heads in `params`, a key of `_ARCHITECTURES`."""
    heads = tuple(head for head in layout.HEADS if head in params)
    unknown = sorted(params.keys() - {"bert", *heads})
    if heads not in _ARCHITECTURES or unknown:
        supported = "; ".join("bert " + " ".join(heads) for heads in _ARCHITECTURES)
        raise ValueError(
            f"No BERT of transformers has exactly the parts {', '.join(sorted(params))}. "
            f"Supported: {supported}."
        )
    return heads


def position_table(config: BertConfig, position: Params) -> np.ndarray:
    """Return the vectors that an encoding adds to the token embeddings, at 0 .. max_length - 1.

    Args:
      position: the parameters of the encoding.

    Returns:
      `[N, D]` float32.

    Raises:
      ValueError: for an encoding that does more than add vectors to the token embeddings.
    """
    encoding = config.encoding()
    other_effects = [f"{part.key} {effect}" for part in encoding.parts for effect in _others(part)]
    if encoding.layers or other_effects:
        raise ValueError(
            "PyTorch's BERT has only a table of absolute positions, which cannot represent "
            f"{encoding.name!r}: {', '.join(other_effects) or 'it differs between layers'}. Export "
            "a model with an absolute encoding or none, or use this one with pe_jax."
        )
    table = np.zeros((config.max_length, config.hidden_size), np.float32)
    for part, params in encoding.split(position):
        assert part.card and part.card.vectors
        table += np.asarray(part.card.vectors(params, np.arange(config.max_length)))
    _compare(config, position, table)
    return table


def _compare(config: BertConfig, position: Params, table: np.ndarray) -> None:
    """Raise ValueError unless the encoding embeds random hidden states as adding the table does."""
    encoding, rng = config.encoding(), np.random.default_rng(0)
    for length in (config.max_length, -(-config.max_length // 2)):
        x = rng.normal(size=(2, length, config.hidden_size)).astype(np.float32)
        tokens = rng.integers(config.vocab_size, size=(2, length))
        error = np.abs(
            embed(encoding, position, x, range(length), tokens=tokens) - x - table[:length]
        )
        if not error.max() <= 1e-4 * max(1, np.abs(table).max()):
            raise ValueError(
                f"PyTorch's BERT adds a table of positions to the word embeddings, which cannot "
                f"represent {encoding.name!r}: in an input of {length} tokens the hidden states "
                f"differ by {error.max():.2g}. Use this model with pe_jax, or export one with "
                "another encoding."
            )


def _others(part: Part) -> list[str]:
    """Return the effects of a part other than adding vectors of positions to the input."""
    adds = part.card is not None and part.card.kind == "absolute" and part.card.vectors
    of_its_own = [] if adds or not part.embed else ["changes the input in a way of its own"]
    return [*part.effects, *of_its_own]


def _tensors(
    config: BertConfig, params: Params, table: np.ndarray, heads: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the exported tensors by name, and one line per parameter that does not fit."""
    ours = flax.traverse_util.flatten_dict(params, sep="/")
    ours = {path: x for path, x in ours.items() if not path.startswith("bert/position/")}
    ours[layout.POSITIONS.ours] = table
    leaves = [
        *layout.encoder_leaves(config.num_layers),
        *(x for h in heads for x in layout.HEADS[h]),
    ]
    classes = len(ours.get("classifier/bias", ()))
    unknown = sorted(ours.keys() - {leaf.ours for leaf in leaves})
    tensors: dict[str, np.ndarray] = {}
    errors = [f"{path}: is not part of such a model" for path in unknown]
    for leaf in leaves:
        if leaf.ours not in ours:
            errors.append(f"{leaf.ours}: missing")
            continue
        converted = leaf.to_theirs(np.asarray(ours[leaf.ours], np.float32))
        shape = layout.tensor_shape(leaf, config, classes)
        if any(tensor.shape != shape for tensor in converted):
            errors.append(f"{leaf.ours}: converts to {converted[0].shape}, {shape} expected")
        tensors |= zip(leaf.tensors, converted, strict=True)
    return tensors, errors


def _config(
    config: BertConfig, tokenizer: Tokenizer, architecture: str, labels: Sequence[str]
) -> dict[str, object]:
    """Return the content of config.json; `labels` are empty without a classifier."""
    values: dict[str, object] = {
        "architectures": [architecture],
        **{key: only for key, (only, _) in layout.ONLY.items()},
        **{key: getattr(config, ours) for ours, key in (layout.SIZES | layout.CONSTANTS).items()},
        "pad_token_id": tokenizer.token_to_id(_SPECIAL["pad_token"]),
        "torch_dtype": "float32",
    }
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
        values["problem_type"] = "regression" if len(labels) == 1 else "single_label_classification"
    return values


def _write(
    folder: Path, config: dict[str, object], tensors: dict[str, np.ndarray], tokenizer: Tokenizer
) -> None:
    """Write all files to a temporary folder, which is then renamed to `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        save_file(whole, temporary / "model.safetensors", metadata={"format": "pt"})
        _save_json(temporary / "config.json", config)
        _save_tokenizer(temporary, with_special_tokens(tokenizer), config)
        for file in temporary.iterdir():
            file.chmod(0o644)
        temporary.chmod(0o755)
        os.replace(temporary, folder)  # Also replaces an empty folder.
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, config: dict[str, object]) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    normalizer = json.loads(tokenizer.to_str())["normalizer"] or {}
    _save_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer.get("lowercase", True),
            "strip_accents": normalizer.get("strip_accents"),
            "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
            "model_max_length": config["max_position_embeddings"],
            **_SPECIAL,
        },
    )
    ids = tokenizer.get_vocab()
    vocabulary = "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__))
    (folder / "vocab.txt").write_text(vocabulary, encoding="utf-8")


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that puts [CLS] first, [SEP] after each text, and does not truncate or pad."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    cls, sep = (_SPECIAL[key] for key in ("cls_token", "sep_token"))
    copy.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, copy.token_to_id(token)) for token in (cls, sep)],
    )
    return copy


def _save_json(file: Path, values: dict[str, object]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
