"""WordPiece trained on the corpus, or an existing tokenizer, such as a byte-level BPE."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pe_jax.files import to_path

# Longer words are [UNK], whatever the vocabulary.
_LONGEST_WORD = 100
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The special tokens of published tokenizers by what they are for.
_SPECIAL_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|end_of_text|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
}
# Of tokens that begin a word after a space or a line feed, in byte-level BPE and SentencePiece.
_WORD_STARTS = ("\u0120", "\u010a", "\u2581")


class Vocabulary(NamedTuple):
    """The ids and flags of a tokenizer that masking and padding need.

    Attributes:
      size: number of ids.
      pad, cls, sep, mask: ids of the special tokens.
      continues: `[size]` bool, True where a token continues a word: `##...` of WordPiece; letters
        or digits without the mark of a space of other tokenizers.
      ordinary: ids of all tokens that are not special.
    """

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    continues: np.ndarray
    ordinary: np.ndarray


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a lower-casing WordPiece tokenizer: at most `vocab_size` tokens, special ones first.

    Args:
      texts: iterated twice, so not an iterator.
    """
    # The trainer numbers the continuing characters (##a) in the order of a hash map and breaks ties
    # between merges by those numbers: two trainings on one text would differ. So a first pass finds
    # the characters, and the second is given them in a fixed order, as special tokens. The returned
    # tokenizer is built from the vocabulary alone, in which they are ordinary tokens.
    characters = [token for token in _train(texts, 0, []) if token.startswith("##")]
    vocab = _train(texts, vocab_size, sorted(characters))
    tokenizer = _word_piece(vocab)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


# Runs of letters and digits, which BERT's pre-tokenizer leaves whole: it splits at spaces,
# punctuation and Chinese characters.
_CHINESE = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf"
_TOO_LONG = re.compile(rf"[^\W_{_CHINESE}]{{{_LONGEST_WORD + 1},}}")


# The trainer takes 100 times the memory of a text. A text in pieces gives the same counts of words,
# as they are cut where BERT's pre-tokenizer splits (elsewhere only if there is no such place).
_LONGEST_PIECE = 100_000
_CUTS = rf" \t\n\r{re.escape(string.punctuation)}{_CHINESE}"


def _train(texts: Iterable[str], vocab_size: int, first: list[str]) -> dict[str, int]:
    tokenizer = _word_piece({"[UNK]": 0})
    # Words that no vocabulary can help would take time in proportion to the square of their length.
    texts = (piece for text in texts for piece in _pieces(_TOO_LONG.sub(" ", text)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=[*SPECIAL_TOKENS, *first], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab(with_added_tokens=True)


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of at most `_LONGEST_PIECE` characters."""
    size = f".{{1,{_LONGEST_PIECE}}}"
    pattern = re.compile(rf"{size}(?:(?<=[{_CUTS}])|\Z)|{size}", re.DOTALL)
    return (match[0] for match in pattern.finditer(text))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` or a BERT `vocab.txt` (lower-casing).

    Truncation and padding, which some published files enable, are disabled.

    Raises:
      ValueError: for a file that is missing, of another type, or lacks a special token.
    """
    path = to_path(path)
    if not path.is_file():
        raise ValueError(f"No tokenizer at {path}: give a tokenizer.json or a vocab.txt.")
    if path.suffix not in _READERS:
        raise ValueError(f"{path} is neither a tokenizer.json nor a vocab.txt. Give one of them.")
    try:
        tokenizer = _READERS[path.suffix](path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}). Download it again.") from error
    tokens = tokenizer.get_vocab()
    missing = [role for role, name in special_tokens(tokenizer).items() if not name]
    if missing and (missing != ["unk"] or is_word_piece(tokenizer)):
        shown_names = 1 if is_word_piece(tokenizer) else None  # BERT's names.
        lacking = ", ".join(" or ".join(_SPECIAL_NAMES[role][:shown_names]) for role in missing)
        raise ValueError(f"The vocabulary of {path} lacks {lacking}.")
    if len(set(tokens.values())) < len(tokens):
        ids = sorted(tokens.values())
        twice = next(a for a, b in itertools.pairwise(ids) if a == b)
        names = sorted(token for token, number in tokens.items() if number == twice)
        raise ValueError(
            f"{path} gives the id {twice} to several tokens: {', '.join(map(repr, names[:5]))}. "
            "Every token needs a different id."
        )
    if max(tokens.values()) >= len(tokens):
        unused = min(set(range(len(tokens))) - set(tokens.values()))
        raise ValueError(
            f"The ids of {path} have gaps: no token has id {unused}, but the last of {len(tokens)} "
            f"tokens has id {max(tokens.values())}. Ids must count up from 0."
        )
    return tokenizer


def _read_json(path: Path) -> Tokenizer:
    text = path.read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # The library raises nothing more specific.
        raise ValueError(
            f"Hugging Face tokenizers cannot read {path} ({error}). Download it again."
        ) from error
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise ValueError(
            f"{path} tokenizes at random (dropout {dropout:g}), so the same text gives different "
            "tokens each time. Set the model's dropout to null."
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_vocab(path: Path) -> Tokenizer:
    """Return the tokenizer of a file with a token a line.

    Only line feeds end one (with a carriage return before it or not): tokens may have other
    characters that Unicode takes for line breaks.
    """
    text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    lines = text.removesuffix("\n").split("\n")
    vocab: dict[str, int] = {}
    for number, token in enumerate(lines):
        if not token.strip(" \t") or token in vocab:
            what = f"repeats line {vocab[token] + 1}" if token in vocab else "is blank"
            raise ValueError(
                f"{path}, line {number + 1}: {token!r} {what}. Each line must hold one token, "
                "the first with id 0."
            )
        vocab[token] = number
    tokenizer = _word_piece(vocab)
    tokenizer.add_special_tokens([t for t in SPECIAL_TOKENS if t in vocab])
    return tokenizer


_READERS: dict[str, Callable[[Path], Tokenizer]] = {".json": _read_json, ".txt": _read_vocab}


def is_word_piece(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer.model, models.WordPiece)


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the names of the special tokens: pad, unk, cls, sep and mask; empty if there is none.

    A tokenizer without a token for padding is padded with `sep`.
    """
    tokens = tokenizer.get_vocab()
    names = {
        role: next((name for name in known if name in tokens), "")
        for role, known in _SPECIAL_NAMES.items()
    }
    return {**names, "pad": names["pad"] or ("" if is_word_piece(tokenizer) else names["sep"])}


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the ids and flags that the data pipeline needs."""
    size = tokenizer.get_vocab_size()
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    special = {role: ids[name] for role, name in special_tokens(tokenizer).items() if name}
    others = [i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    if is_word_piece(tokenizer):
        continues = [token.startswith("##") for token in tokens]
    else:
        continues = [token[0].isalnum() and not token.startswith(_WORD_STARTS) for token in tokens]
    return Vocabulary(
        size=size,
        pad=special["pad"],
        cls=special["cls"],
        sep=special["sep"],
        mask=special["mask"],
        continues=np.array(continues),
        ordinary=np.setdiff1d(np.arange(size), [*special.values(), *others]),
    )


def _word_piece(vocab: dict[str, int]) -> Tokenizer:
    """Return BERT's tokenizer: lower case, accents stripped, longest match first."""
    model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer
