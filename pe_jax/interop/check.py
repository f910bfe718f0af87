"""Compare a published encoder, as pe_jax reads it, with transformers and sentence-transformers.

    pip install '.[parity]'
    python -m pe_jax.interop.check FOLDER

prints the largest differences of token ids, hidden states, heads and embeddings (these where
sentence-transformers is installed). It exits with 1 if one is larger than rounding explains, and
with 2 if there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pe_jax.interop.bert_import import current_config, load_encoder
from pe_jax.interop.hf_encoders import format_of
from pe_jax.interop.hub import local_folder
from pe_jax.interop.published_encoder import PublishedEncoder
from pe_jax.interop.sentence_files import MODULES, EncoderFolder, transformer_folder
from pe_jax.interop.sentence_vectors import Inputs, tokenize
from pe_jax.interop.tokenizer_config import read_object
from pe_jax.models import (
    BertForClassification,
    BertForMaskedLM,
    BertForPretraining,
    BertForSpans,
    BertForTokens,
    hidden_states,
)
from pe_jax.models.heads import Pooler

TEXTS = (
    "Where is the exit?",
    "The committee, which had met every Tuesday since 1987, adjourned without a decision.",
    "Größe: 12 × 3,5 cm; naïve café – e.g. “quotes”, tabs\tand  spaces.",
    "a",
    "It is behind the stairs, to the left of the lift, where the old post office used to be before "
    "the station was rebuilt; you cannot miss it, because the sign is as tall as the door.",
)
# Of the largest value; float32 has 1e-7, and errors add up over layers.
TOLERANCE = 1e-4


class Difference(NamedTuple):
    """The largest difference of an output, and the largest value that it has in transformers."""

    name: str
    difference: float
    largest: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains the difference; not if it is NaN."""
        return self.difference <= TOLERANCE * max(self.largest, 1e-3)

    def line(self) -> str:
        verdict = "" if self.is_rounding else "  <- more than rounding"
        return f"{self.name:24} {self.difference:10.1e} {self.largest:10.1f}{verdict}"


def difference(name: str, ours: Any, theirs: Any) -> Difference:
    """Return the difference of two arrays; infinite if they differ in shape."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    largest = float(np.abs(theirs).max(initial=0.0))
    if ours.shape != theirs.shape:
        return Difference(f"{name} (shapes)", float("inf"), largest)
    return Difference(name, float(np.abs(ours - theirs).max(initial=0.0)), largest)


class Rows(NamedTuple):
    """Padded rows of texts, as both libraries are given them."""

    inputs: Inputs
    mask: np.ndarray

    def arguments(self) -> tuple[Any, Any, Any]:
        """Return the arguments of the models of pe_jax."""
        return self.inputs.tokens, self.inputs.token_types, self.mask

    def tensors(self, model: Any) -> dict[str, Any]:
        """Return the arguments of a model of transformers."""
        import inspect

        import torch

        tensors = {
            "input_ids": torch.tensor(self.inputs.tokens, dtype=torch.long),
            "attention_mask": torch.tensor(self.mask, dtype=torch.long),
        }
        if "token_type_ids" in inspect.signature(model.forward).parameters:
            types = torch.tensor(self.inputs.token_types, dtype=torch.long)
            tensors["token_type_ids"] = types
        return tensors


def rows_of(folder: Path, texts: Sequence[str], longest: int | None) -> Rows:
    """Return texts as rows of at most `longest` tokens, padded on the right."""
    tokenizer = EncoderFolder(folder).tokenizer(longest)
    tokenized = tokenize(tokenizer, texts, has_types=False)
    lengths = np.array([len(ids) for ids in tokenized.ids], np.int32)
    tokens = np.zeros((len(texts), lengths.max()), np.int32)
    for row, ids in enumerate(tokenized.ids):
        tokens[row, : len(ids)] = ids
    mask = np.arange(lengths.max()) < lengths[:, None]
    return Rows(Inputs(tokens, np.zeros_like(tokens), lengths), mask)


def _masked_lm(
    encoder: PublishedEncoder, rows: Rows, theirs: Any
) -> Iterator[Difference]:
    every = np.broadcast_to(np.arange(rows.mask.shape[1]), rows.mask.shape)
    logits: Any = BertForMaskedLM(encoder.config).apply(
        {"params": encoder.params}, *rows.arguments(), masked_positions=every
    )
    size = encoder.config.vocab_size  # Rows after the vocabulary are never predicted.
    yield difference(
        "masked_lm", logits[rows.mask], theirs.logits[..., :size][rows.mask]
    )


def _classifier(
    encoder: PublishedEncoder, rows: Rows, theirs: Any
) -> Iterator[Difference]:
    model = BertForClassification(
        encoder.config, len(encoder.params["classifier"]["bias"])
    )
    logits = model.apply({"params": encoder.params}, *rows.arguments())
    yield difference("classifier", logits, theirs.logits)


def _tokens(encoder: PublishedEncoder, rows: Rows, theirs: Any) -> Iterator[Difference]:
    classes = len(encoder.params["tokens"]["bias"])
    model = BertForTokens(encoder.config, classes)
    logits: Any = model.apply({"params": encoder.params}, *rows.arguments())
    yield difference("tokens", logits[rows.mask], theirs.logits[rows.mask])


def _spans(encoder: PublishedEncoder, rows: Rows, theirs: Any) -> Iterator[Difference]:
    logits: Any = BertForSpans(encoder.config).apply(
        {"params": encoder.params}, *rows.arguments()
    )
    start, end = logits
    mask = rows.mask
    yield difference("spans, start", start[mask], theirs.start_logits[mask])
    yield difference("spans, end", end[mask], theirs.end_logits[mask])


def _next_sentence(
    encoder: PublishedEncoder, rows: Rows, theirs: Any
) -> Iterator[Difference]:
    first = np.zeros((len(rows.mask), 1), np.int32)
    logits: Any = BertForPretraining(encoder.config).apply(
        {"params": encoder.params}, *rows.arguments(), masked_positions=first
    )
    yield difference(
        "next_sentence", logits.next_sentence, theirs.seq_relationship_logits
    )


Compare = Callable[[PublishedEncoder, Rows, Any], Iterator[Difference]]
# By head: the class of transformers that has it, and what compares it.
HEADS: dict[str, tuple[str, Compare]] = {
    "masked_lm": ("AutoModelForMaskedLM", _masked_lm),
    "classifier": ("AutoModelForSequenceClassification", _classifier),
    "tokens": ("AutoModelForTokenClassification", _tokens),
    "spans": ("AutoModelForQuestionAnswering", _spans),
    "next_sentence": ("AutoModelForPreTraining", _next_sentence),
}


def differences(encoder: PublishedEncoder, folder: Path) -> Iterator[Difference]:
    """Yield the differences from transformers: ids, hidden states, and every head that was read."""
    import torch
    import transformers

    files = transformer_folder(folder)
    longest = encoder.config.encoding().max_length
    rows = rows_of(folder, TEXTS, longest)
    tokenizer = transformers.AutoTokenizer.from_pretrained(files)
    for number, text in enumerate(TEXTS):
        ids = rows.inputs.tokens[number, : rows.inputs.lengths[number]]
        cut = {"truncation": True, "max_length": longest} if longest else {}
        theirs = np.array(tokenizer(text, **cut)["input_ids"])
        yield difference(f"ids of text {number + 1}", ids, theirs)

    def outputs(kind: str) -> Any:
        model = getattr(transformers, kind).from_pretrained(
            files, dtype=torch.float32, attn_implementation="eager"
        )
        model.eval()
        with torch.no_grad():
            return model(**rows.tensors(model), output_hidden_states=True)

    of_encoder = outputs("AutoModel")
    ours = np.asarray(
        hidden_states(encoder.config, encoder.params["bert"], *rows.arguments())
    )
    for layer, theirs in enumerate(of_encoder.hidden_states):
        yield difference(
            f"hidden states {layer}", ours[layer][rows.mask], theirs[rows.mask]
        )
    pooled = getattr(of_encoder, "pooler_output", None)
    if "pooler" in encoder.params and pooled is not None:
        pooler = {"params": encoder.params["pooler"]}
        own = Pooler(encoder.config).apply(pooler, ours[-1], rows.mask)
        yield difference("pooler", own, pooled)
    for head, (kind, compare) in HEADS.items():
        if head in encoder.params:
            yield from compare(encoder, rows, outputs(kind))


def in_transformers(folder: Path) -> bool:
    """Return whether transformers 5 has the encoder of a folder, without code of its authors.

    Its BERT would load others, such as those with relative keys, and ignore their positions.
    """
    file = transformer_folder(folder) / "config.json"
    return format_of(current_config(read_object(file), str(file))).in_transformers


def embedding_difference(encoder: PublishedEncoder, folder: Path) -> Difference:
    """Return the difference of embeddings from sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    theirs = model.encode(list(TEXTS), show_progress_bar=False)
    return difference("embeddings", encoder.encode(TEXTS), theirs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences of the model that is named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pe_jax.interop.check", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("model", help="A folder, or the name of a model of the Hub.")
    name = parser.parse_args(arguments).model
    try:
        folder = local_folder(name)
        encoder = load_encoder(folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    heads = ", ".join(head for head in encoder.params if head != "bert")
    position = encoder.config.encoding().name
    print(f"{name}: positions {position}; heads: {heads or 'none'}", flush=True)
    if encoder.unread:
        print(f"not read: {', '.join(encoder.unread)}")
    if not in_transformers(folder):
        print(
            "The folder loads, but transformers 5 has no class for its positions, so nothing was "
            "compared."
        )
        return 2
    if not importlib.util.find_spec("transformers"):
        print(
            "The folder loads, but transformers is not installed, so nothing was compared. "
            "Install it with: pip install 'transformers>=5.17' torch"
        )
        return 2
    print(f"{'':24} {'difference':>10} {'largest':>10}")
    failed = False
    found = differences(encoder, folder)
    for each in found:
        print(each.line(), flush=True)
        failed = failed or not each.is_rounding
    if (folder / MODULES).is_file():
        if importlib.util.find_spec("sentence_transformers"):
            each = embedding_difference(encoder, folder)
            print(each.line())
            failed = failed or not each.is_rounding
        else:
            print(
                "Embeddings were not compared: sentence-transformers is not installed."
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
