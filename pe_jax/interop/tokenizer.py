"""WordPiece trained on the corpus, or an existing tokenizer, such as a byte-level BPE."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from pe_jax.common.files import to_path
from pe_jax.interop.special_tokens import (
    KNOWN_NAMES,
    NAMES,
    control_names,
    is_word_piece,
    special_tokens,
)
from pe_jax.interop.tokenizer_classes import (
    BERT_NAMES,
    bert_settings,
    declared_class,
    follow_config,
    splits_as_bert,
)
from pe_jax.interop.tokenizer_config import (
    ADDED_TOKENS,
    CONFIG,
    NAMES_MAP,
    ROLES,
    FilesBeside,
    add_declared_tokens,
    read_files_beside,
)

_LONGEST_WORD = 100  # Longer ones are [UNK], whatever the vocabulary.
SPECIAL_TOKENS = tuple(BERT_NAMES.values())
_Settings: TypeAlias = dict[str, bool | None]


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` or a BERT `vocab.txt`; it never truncates or pads.

    The files next to it are read too, as transformers does: the names of special tokens, added
    tokens (see `tokenizer_config`), and the class with its settings (see `tokenizer_classes`). A
    `vocab.txt` without `tokenizer_config.json` is lower-cased.

    Raises:
      ValueError: for a file that is missing, of another type, or lacks a special token, and for
        files that contradict each other.
    """
    path = to_path(path)
    if not path.is_file():
        raise ValueError(
            f"No tokenizer at {path}: give a tokenizer.json or a vocab.txt."
        )
    if path.suffix not in _READERS:
        raise ValueError(
            f"{path} is neither a tokenizer.json nor a vocab.txt. Give one of them."
        )
    beside = read_files_beside(path)
    try:
        tokenizer = _READERS[path.suffix](path, beside)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error}). Download it again."
        ) from error
    names = {}
    for role, token in beside.names.items():
        if role in ROLES:
            names[role] = token.content
    setattr(tokenizer, NAMES, names)
    with _errors_of_the_library(f"{path} cannot encode a text"):
        tokenizer.encode("a \u2603", "a")  # A pair with an unknown word.
        names = special_tokens(tokenizer)
    missing = []
    if path.suffix == ".txt":
        tokens = tokenizer.get_vocab()
        for role, name in _bert_names(beside).items():
            if name not in tokens:
                missing.append(role)
    else:
        missing = [role for role in ("pad", "mask") if not names[role]]
    if missing:
        shown_names = 1 if is_word_piece(tokenizer) else None  # BERT's names.
        lacking = [" or ".join(KNOWN_NAMES[role][:shown_names]) for role in missing]
        raise ValueError(
            f"The vocabulary of {path} lacks {', '.join(lacking)}, and the files next to it "
            f"({CONFIG}, {NAMES_MAP}, {ADDED_TOKENS}) name no other. Put the published ones there."
        )
    if path.suffix == ".json":
        follow_config(path, tokenizer, beside)
    _check_added_tokens(path, tokenizer)
    return tokenizer


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the files that `load_tokenizer` reads a tokenizer from, content by name."""
    files = {"tokenizer.json": tokenizer.to_str(pretty=True)}
    if names := getattr(tokenizer, NAMES, {}):
        config = {f"{role}_token": name for role, name in names.items()}
        files[CONFIG] = json.dumps(config, indent=2) + "\n"
    return files


def _check_ids(path: Path, tokens: Mapping[str, int]) -> None:
    ids = sorted(tokens.values())
    for number, following in itertools.pairwise(ids):
        if number == following:
            names = sorted(token for token in tokens if tokens[token] == number)
            raise ValueError(
                f"{path} gives the id {number} to several tokens: "
                f"{', '.join(map(repr, names[:5]))}. Every token needs a different id."
            )
    for expected, number in enumerate(ids):
        if number != expected:
            raise ValueError(
                f"The ids of {path} have gaps: no token has id {expected}, but the last of "
                f"{len(tokens)} tokens has id {ids[-1]}. Ids must count up from 0."
            )


def _check_added_tokens(path: Path, tokenizer: Tokenizer) -> None:
    """Raise ValueError for added tokens that a text cannot tell apart: the library takes any."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return
    control = control_names(tokenizer)
    names: dict[str, str] = {}
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.normalized and token.content not in control:
            written = normalizer.normalize_str(token.content)
            if written in names:
                raise ValueError(
                    f"{path}: the added tokens {names[written]!r} and {token.content!r} are both "
                    f"{written!r} to its normalizer. Set their normalized to false, here or in "
                    f"{CONFIG}."
                )
            names[written] = token.content


@contextlib.contextmanager
def _errors_of_the_library(message: str) -> Iterator[None]:
    """Turn errors of the library, which have no type of their own, into a ValueError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, ValueError):
        raise
    except BaseException as error:  # A panic of Rust is no Exception.
        raise ValueError(f"{message} ({error}). Download it again.") from error


def _read_json(path: Path, beside: FilesBeside) -> Tokenizer:
    text = path.read_text(encoding="utf-8")
    with _errors_of_the_library(f"Hugging Face tokenizers cannot read {path}"):
        tokenizer = Tokenizer.from_str(text)
    model = tokenizer.model
    if dropout := getattr(model, "dropout", None):
        raise ValueError(
            f"{path} tokenizes at random (dropout {dropout:g}), so the same text gives different "
            "tokens each time. Set the model's dropout to null."
        )
    # The library raises an error at the first word that it cannot write.
    if isinstance(model, models.Unigram):
        spec = json.loads(text)["model"]
        key, unknown = "unk_id", spec.get("unk_id")
        is_missing = unknown is None and not spec.get("byte_fallback")
    else:
        key, unknown = "unk_token", getattr(model, "unk_token", None) or ""
        is_missing = unknown != "" and tokenizer.token_to_id(unknown) is None
    if is_missing:
        raise ValueError(
            f"{path}: {key} of the model is {unknown!r}, which is no token, so a text with unknown "
            "words cannot be tokenized. Set it to a token of the vocabulary."
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_ids(path, tokenizer.get_vocab())
    add_declared_tokens(path, tokenizer, beside)
    return tokenizer


def _read_vocab(path: Path, beside: FilesBeside) -> Tokenizer:
    """Return the tokenizer of a file with a token a line. Tokens may have characters that Unicode,
    and so `splitlines`, takes for line breaks."""
    text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
    vocab: dict[str, int] = {}
    for number, token in enumerate(text.removesuffix("\n").split("\n")):
        if not token.strip(" \t") or token in vocab:
            what = f"repeats line {vocab[token] + 1}" if token in vocab else "is blank"
            raise ValueError(
                f"{path}, line {number + 1}: {token!r} {what}. Each line must hold one token, "
                "the first with id 0."
            )
        vocab[token] = number
    names = _bert_names(beside)
    settings = _settings(path, vocab, names.values(), beside)
    tokenizer = _word_piece(vocab, settings, names["unk"])
    tokens = {*vocab, *(declared.token.content for declared in beside.declared)}
    present = {role: name for role, name in names.items() if name in tokens}
    add_declared_tokens(path, tokenizer, beside.with_names(present))
    return tokenizer


def _bert_names(beside: FilesBeside) -> dict[str, str]:
    return {role: beside.name(role, default) for role, default in BERT_NAMES.items()}


def _settings(
    path: Path, vocab: Iterable[str], special: Collection[str], beside: FilesBeside
) -> _Settings:
    """Return the settings of BERT's normalizer, from the file next to a `vocab.txt`."""
    file, config = beside.config_file, beside.config
    name, class_file = declared_class(path, beside)
    if not splits_as_bert(name or "BertTokenizer"):
        raise ValueError(
            f"{class_file}: tokenizer_class={name!r:.60} does not split a text by vocab.txt alone. "
            "Put its tokenizer.json next to it."
        )
    has_upper_case = any(word != word.lower() for word in {*vocab} - {*special})
    if config.get("do_lower_case") is None and has_upper_case:
        raise ValueError(
            f"{path} has tokens in upper case, but a vocab.txt alone is read as that of an "
            f'uncased model. Write {{"do_lower_case": false}} to {file}.'
        )
    return bert_settings(file, config)


_READERS: dict[str, Callable[[Path, FilesBeside], Tokenizer]] = {
    ".json": _read_json,
    ".txt": _read_vocab,
}


def _word_piece(
    vocab: dict[str, int], settings: _Settings, unknown: str = "[UNK]"
) -> Tokenizer:
    """Return BERT's tokenizer: the longest match first; `settings` are of its normalizer."""
    model = models.WordPiece(
        vocab, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(**settings)  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


# --- training -------------------------------------------------------------------------------------


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, *, strip_accents: bool = False
) -> Tokenizer:
    """Return a lower-casing WordPiece tokenizer: at most `vocab_size` tokens, special ones first.

    Args:
      texts: iterated twice, so not an iterator.
      strip_accents: drop accents and other marks, as the published uncased BERT does. This merges
        words that differ in them, such as Japanese and Hindi have.
    """
    # The trainer numbers the continuing characters (##a) in the order of a hash map and breaks ties
    # between merges by those numbers: two trainings on one text would differ. So a first pass finds
    # the characters, and the second is given them in a fixed order, as special tokens. The returned
    # tokenizer is built from the vocabulary alone, in which they are ordinary tokens.
    settings: _Settings = {"lowercase": True, "strip_accents": strip_accents}
    first_vocab = _train(texts, 0, [], settings)
    characters = [token for token in first_vocab if token.startswith("##")]
    vocab = _train(texts, vocab_size, sorted(characters), settings)
    tokenizer = _word_piece(vocab, settings)
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


def _train(
    texts: Iterable[str], vocab_size: int, first: list[str], settings: _Settings
) -> dict[str, int]:
    tokenizer = _word_piece({"[UNK]": 0}, settings)
    # Words that no vocabulary can help would take time in proportion to the square of their length.
    shortened = (_TOO_LONG.sub(" ", text) for text in texts)
    pieces = itertools.chain.from_iterable(map(_pieces, shortened))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *first],
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, trainer)
    return tokenizer.get_vocab(with_added_tokens=True)


def _pieces(text: str) -> Iterator[str]:
    size = f".{{1,{_LONGEST_PIECE}}}"
    pattern = re.compile(rf"{size}(?:(?<=[{_CUTS}])|\Z)|{size}", re.DOTALL)
    for match in pattern.finditer(text):
        yield match[0]
