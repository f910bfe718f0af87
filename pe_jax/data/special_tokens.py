"""Special tokens of a tokenizer, and texts without any.

The files of a tokenizer say what its special tokens are: its post-processor first, then
`tokenizer_config.json`, then `special_tokens_map.json`. Only where none does, a special token is
recognised by a well-known name; an ordinary token, as `<s>` in Gemma's vocabulary, is none.
"""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

from pe_jax.data.templates import Template, bert_template, post_processor_template

# By what the tokens are for. What other tokenizers have for [CLS] and [SEP], their post-processors
# put around a text.
KNOWN_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
}
NAMES = "special_names"  # The attribute of a tokenizer with the names in the files next to it.
# A noncharacter: put before a name, it makes one that no text has.
_NOT_IN_TEXT = "\U0010ffff"


class Vocabulary(NamedTuple):
    """Ids and templates that masks, padding and rows need of a tokenizer."""

    size: int  # Number of ids.
    pad: int
    mask: int
    ordinary: np.ndarray  # Ids of all tokens that are not special.
    single: Template  # The special tokens around a text,
    pair: Template  # and around two.


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the ids and templates that the data pipeline needs.

    Raises:
      ValueError: for a tokenizer without a token for masks, or a template of another form.
    """
    size, names = tokenizer.get_vocab_size(), special_tokens(tokenizer)
    (pad,), (mask,) = (_ids(tokenizer, names[role]) or [-1] for role in ("pad", "mask"))
    if min(pad, mask) < 0:
        raise ValueError(f"tokenizer: it needs special tokens for pad and mask, and has {names}.")
    ordinary = np.setdiff1d(np.arange(size), _ids(tokenizer, *_special_names(tokenizer)))
    templates = (_template(tokenizer, pair=pair) for pair in (False, True))
    return Vocabulary(size, pad, mask, ordinary, *templates)


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names of the special tokens: pad, unk, cls, sep and mask; empty if there is none.

    A tokenizer without a token for padding is padded with `sep`, or `cls`.
    """
    names, single = _named(tokenizer), _template(tokenizer, pair=False)
    for role, ids in (("cls", single.before[:1]), ("sep", single.after[-1:])):
        names[role] = "".join(tokenizer.id_to_token(number) or "" for number in ids.tolist())
    return {**names, "pad": names["pad"] or names["sep"] or names["cls"]}


def _ids(tokenizer: Tokenizer, *names: str) -> list[int]:
    """Return the ids of those names that are not empty and are tokens."""
    ids = (tokenizer.token_to_id(name) for name in names if name)
    return [number for number in ids if number is not None]


def _template(tokenizer: Tokenizer, *, pair: bool) -> Template:
    if any(map(tokenizer.num_special_tokens_to_add, (False, True))):
        return post_processor_template(tokenizer, pair=pair)
    names = _named(tokenizer)
    cls, sep = (_ids(tokenizer, names[role]) for role in ("cls", "sep"))
    return bert_template(cls if sep else [], sep if cls else [], pair=pair)


def _named(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names that the files beside a tokenizer give, or its model, or well-known ones."""
    # "[CLS]" in a vocabulary of WordPiece is no ordinary word. Names that are flagged come first:
    # MPNet's vocabulary has "<mask>", which is, and BERT's "[MASK]".
    words = tokenizer.get_vocab() if is_word_piece(tokenizer) else ()
    special = (_flagged(tokenizer), words)
    known = {
        role: next((name for part in special for name in names if name in part), "")
        for role, names in KNOWN_NAMES.items()
    }
    unknown = getattr(tokenizer.model, "unk_token", None)
    return {**known, **({"unk": unknown} if unknown else {}), **getattr(tokenizer, NAMES, {})}


def _flagged(tokenizer: Tokenizer) -> set[str]:
    added = tokenizer.get_added_tokens_decoder().values()
    return {token.content for token in added if token.special}


def _special_names(tokenizer: Tokenizer) -> set[str]:
    """Return the names of all special tokens, whatever they are for."""
    return _flagged(tokenizer) | {*filter(None, special_tokens(tokenizer).values())}


def is_word_piece(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer.model, models.WordPiece)


@functools.lru_cache(maxsize=2)
def text_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy with the same ids, to which a "[MASK]" that is written in a text is a word as
    any other."""
    spec = json.loads(tokenizer.to_str())
    new_names = {name: _NOT_IN_TEXT + name for name in _special_names(tokenizer)}

    def renamed(name: str) -> str:
        return new_names.get(name, name)

    for token in spec["added_tokens"]:
        token["content"] = renamed(token["content"])
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(name): number for name, number in model["vocab"].items()}
    else:  # Of Unigram: its search prefers <s>, of score 0, to all other pieces.
        model["vocab"] = [[renamed(name), score] for name, score in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = renamed(model["unk_token"])
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in new_names]
    return Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))
