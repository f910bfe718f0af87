"""Special tokens of a tokenizer, and texts without control tokens.

The files of a tokenizer say what its special tokens are: its post-processor first, then the files
beside it (see `tokenizer_config`). Only where none does, a special token is recognised by a
well-known name; an ordinary token, as `<s>` in Gemma's vocabulary, is none.

Control tokens are those that mark up a row: padding, unknown words, masks, and the beginning and
the end of a text. A text that contains the name of one has no such token. Every other added token,
such as a marker `[E1]`, is a token wherever a text has it, special or not, as in transformers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

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
# Names of tokens that begin or end a text, where no file says so.
_BOUNDARY_NAMES = (
    "<s>", "</s>", "<bos>", "<eos>", "[BOS]", "[EOS]", "<|begin_of_text|>", "<|end_of_text|>",
    "<|startoftext|>", "<|endoftext|>",
)  # fmt: skip
# A noncharacter: put before a name, it makes one that no text has.
_NOT_IN_TEXT = "\U0010ffff"


class Template(NamedTuple):
    """The special tokens, int32, of a row: `before`, text, `after`; or `before`, first, `between`,
    second, `after`.

    `second` is where token type 1 begins in a pair, relative to its second text: at most 0. None:
    every token is of type 0, as in RoBERTa.
    """

    before: np.ndarray
    between: np.ndarray
    after: np.ndarray
    second: int | None

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """Return a row of one text, `[n]` ids, or two: int32."""
        texts = (first,) if second is None else (first, self.between, second)
        return np.concatenate([self.before, *texts, self.after], dtype=np.int32)

    def second_start(self, first: int) -> int:
        """Return where the second text begins if the first has `first` tokens."""
        return len(self.before) + first + len(self.between)

    def type_start(self, first: int, size: int) -> int:
        """Return where token type 1 begins in a row of `size` tokens; `size` if nowhere."""
        return size if self.second is None else self.second_start(first) + self.second


class Vocabulary(NamedTuple):
    """What masks, padding and rows need of a tokenizer: the number of ids, those of two special
    tokens and of all ordinary ones, which are no control tokens, and the special tokens around a
    text and around two."""

    size: int
    pad: int
    mask: int
    ordinary: np.ndarray
    single: Template
    pair: Template


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the ids and templates that the data pipeline needs.

    Raises:
      ValueError: for a tokenizer without a token for masks, or a template of another form.
    """
    size = tokenizer.get_vocab_size()
    names = special_tokens(tokenizer)
    pad = _ids(tokenizer, names["pad"])
    mask = _ids(tokenizer, names["mask"])
    if not pad or not mask:
        raise ValueError(
            f"tokenizer: it needs special tokens for pad and mask, and has {names}."
        )
    ordinary = np.setdiff1d(np.arange(size), _ids(tokenizer, *control_names(tokenizer)))
    return Vocabulary(
        size=size,
        pad=pad[0],
        mask=mask[0],
        ordinary=ordinary,
        single=row_template(tokenizer, pair=False),
        pair=row_template(tokenizer, pair=True),
    )


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names of the special tokens: pad, unk, cls, sep and mask; empty if there is none.

    A tokenizer without a token for padding is padded with `sep`, or `cls`.
    """
    names = _named(tokenizer)
    single = row_template(tokenizer, pair=False)
    names["cls"] = names["sep"] = ""
    if len(single.before):
        names["cls"] = _name_of(tokenizer, int(single.before[0]))
    if len(single.after):
        names["sep"] = _name_of(tokenizer, int(single.after[-1]))
    names["pad"] = names["pad"] or names["sep"] or names["cls"]
    return names


def _name_of(tokenizer: Tokenizer, number: int) -> str:
    """Return the name of an id, empty if there is none; `id_to_token` may lower-case it."""
    added = tokenizer.get_added_tokens_decoder().get(number)
    return added.content if added else tokenizer.id_to_token(number) or ""


def _ids(tokenizer: Tokenizer, *names: str) -> list[int]:
    """Return the ids of those names that are not empty and are tokens."""
    ids = []
    for name in names:
        number = tokenizer.token_to_id(name) if name else None
        if number is not None:
            ids.append(number)
    return ids


def row_template(tokenizer: Tokenizer, *, pair: bool) -> Template:
    """Return the special tokens of a row of one text, or two.

    Raises:
      ValueError: for a template of another form.
    """
    if any(map(tokenizer.num_special_tokens_to_add, (False, True))):
        return _post_processor_template(tokenizer, pair=pair)
    names = _named(tokenizer)
    cls = _ids(tokenizer, names["cls"])
    sep = _ids(tokenizer, names["sep"])
    if not cls or not sep:
        return bert_template([], [], pair=pair)
    return bert_template(cls, sep, pair=pair)


def _named(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names that the files beside a tokenizer give, or its model, or well-known ones."""
    # "[CLS]" in a vocabulary of WordPiece is no ordinary word. Names that are flagged come first:
    # MPNet's vocabulary has "<mask>", which is, and BERT's "[MASK]".
    words = tokenizer.get_vocab() if is_word_piece(tokenizer) else ()
    flagged = _flagged(tokenizer)
    known = dict.fromkeys(KNOWN_NAMES, "")
    for role, names in KNOWN_NAMES.items():
        present = [name for name in names if name in flagged]
        present += [name for name in names if name in words]
        if present:
            known[role] = present[0]
    unknown = getattr(tokenizer.model, "unk_token", None)
    if unknown:
        known["unk"] = unknown
    files = getattr(tokenizer, NAMES, {})
    return {role: files.get(role, name) for role, name in known.items()}


def _flagged(tokenizer: Tokenizer) -> set[str]:
    added = tokenizer.get_added_tokens_decoder().values()
    return {token.content for token in added if token.special}


def control_names(tokenizer: Tokenizer) -> set[str]:
    """Return the names of the tokens that mark up rows, which no text has.

    They are those with a role, in the files or in the post-processor, and the special tokens with a
    well-known name. Other special tokens were added for texts.
    """
    well_known = set(_BOUNDARY_NAMES).union(*KNOWN_NAMES.values())
    names = well_known & _flagged(tokenizer)
    names.update(special_tokens(tokenizer).values())
    names.update(getattr(tokenizer, NAMES, {}).values())
    names.update(_post_processor_names(tokenizer))
    return names - {""}


def _post_processor_names(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the names of the tokens that the post-processor may put around a text."""
    if tokenizer.post_processor is None:
        return
    parts = [json.loads(tokenizer.post_processor.__getstate__())]
    while parts:
        part = parts.pop()
        parts += part.get("processors", [])
        for token in part.get("special_tokens", {}).values():
            yield from token["tokens"]
        for role in ("cls", "sep"):  # Of BERT's and RoBERTa's: name and id.
            if role in part:
                yield part[role][0]


def is_word_piece(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer.model, models.WordPiece)


@functools.lru_cache(maxsize=2)
def text_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy with the same ids, to which a written "[MASK]" is a word as any other.

    It adds no special tokens and does not trim offsets: a post-processor does so by what a token
    begins with, which may be a space that the text lacks.
    """
    spec = json.loads(tokenizer.to_str())
    new_names = {name: _NOT_IN_TEXT + name for name in control_names(tokenizer)}

    def renamed(name: str) -> str:
        return new_names.get(name, name)

    for token in spec["added_tokens"]:
        token["content"] = renamed(token["content"])
    model = spec["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed(name): number for name, number in vocab.items()}
    else:  # Of Unigram: its search prefers <s>, of score 0, to all other pieces.
        model["vocab"] = [[renamed(name), score] for name, score in vocab]
    if model.get("unk_token"):
        model["unk_token"] = renamed(model["unk_token"])
    if "merges" in model:
        merges = model["merges"]
        model["merges"] = [pair for pair in merges if "".join(pair) not in new_names]
    spec |= {"post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(spec))


def require_cls(template: Template) -> Template:
    """Return the template.

    Raises:
      ValueError: if it begins with the text, not with a token as [CLS].
    """
    if not len(template.before):
        raise ValueError(
            "tokenizer: its post-processor puts no special token before a text, but next-sentence "
            "prediction, classification and answers need one, such as [CLS]. Give a tokenizer.json "
            "whose post-processor adds it."
        )
    return template


def bert_template(cls: Sequence[int], sep: Sequence[int], *, pair: bool) -> Template:
    """Return `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]` of two types."""
    before = np.array(cls, np.int32)
    after = np.array(sep, np.int32)
    if pair:
        return Template(before, between=after, after=after, second=0)
    return Template(before, between=after[:0], after=after, second=None)


def _post_processor_template(tokenizer: Tokenizer, *, pair: bool) -> Template:
    """Return what the post-processor does to a text, or to two; ValueError if the second
    comes first, or types do not go from 0 to 1."""
    probe = _probe(tokenizer)
    encoding = tokenizer.encode(probe, probe) if pair else tokenizer.encode(probe)
    owner = np.array([-1 if n is None else n for n in encoding.sequence_ids])
    ids = np.array(encoding.ids, np.int32)
    types = np.array(encoding.type_ids)
    if ids.max() >= tokenizer.get_vocab_size():
        raise ValueError(
            f"tokenizer: its post-processor adds the id {ids.max()}, which is no token."
        )
    texts = [np.flatnonzero(owner == n) for n in range(1 + pair)]
    begin, end = texts[0][0], texts[-1][-1] + 1
    between = ids[:0]
    second = None
    if pair:
        start = int(texts[1][0])
        between = ids[texts[0][-1] + 1 : start]
        if types.any():
            second = int(np.argmax(types)) - start
    is_in_order = (np.diff(owner[owner >= 0]) >= 0).all()
    types_ascend = (np.diff(types) >= 0).all() and types.max() <= 1
    is_near = second is None or -len(between) <= second <= 0
    if not (is_in_order and types_ascend and is_near):
        raise ValueError(
            f"tokenizer: its post-processor gives a text and a second one the order "
            f"{owner.tolist()} and the types {types.tolist()} (-1 is a special token). Accepted "
            "are the first text, then the second, with types 0, then 1 from the second text on."
        )
    return Template(ids[:begin], between, ids[end:], second)


def _probe(tokenizer: Tokenizer) -> str:
    for text in ("a", *tokenizer.get_vocab(with_added_tokens=False)):
        if tokenizer.encode(text, add_special_tokens=False).ids:
            return text
    raise ValueError("tokenizer: no text has a token. Give another tokenizer.json.")
