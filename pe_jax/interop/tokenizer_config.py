"""The files beside a tokenizer: names of special tokens, added tokens, and the class that reads it.

transformers writes them, and they are read as its version 5 does. If `tokenizer_config.json` has
`added_tokens_decoder`, that is the list of added tokens. Otherwise they are in `added_tokens.json`,
and a name in `special_tokens_map.json` replaces that of `tokenizer_config.json`.
(`PreTrainedTokenizerBase._from_pretrained` of transformers 5.24)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer

from pe_jax.common.files import Json, read_json

CONFIG = "tokenizer_config.json"
NAMES_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
# The roles of special tokens, in the order in which transformers adds those that are no tokens yet.
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_ADDED = "added_tokens_decoder"  # The key of `CONFIG`.
# The first takes precedence.
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("lstrip", "normalized", "rstrip", "single_word", "special")


class DeclaredToken(NamedTuple):
    """An added token, and the file and id that declare it."""

    token: AddedToken
    number: int
    file: Path


class FilesBeside(NamedTuple):
    """The content of the files beside a tokenizer."""

    config_file: Path  # It may not exist; then `config` is empty.
    config: Json
    names: dict[str, AddedToken]  # By role, those of `ROLES` first.
    extra: list[AddedToken]  # Further special tokens, without a role or an id.
    declared: list[DeclaredToken]  # Ascending in their ids.

    def with_names(self, defaults: Mapping[str, str]) -> FilesBeside:
        """Return a copy with further names of special tokens, by role."""
        names = {role: _special(role, name) for role, name in defaults.items()}
        return self._replace(names={**names, **self.names})

    def name(self, role: str, default: str = "") -> str:
        """Return the name of a special token."""
        token = self.names.get(role)
        return default if token is None else token.content


def read_files_beside(path: Path) -> FilesBeside:
    """Return the content of the files beside the tokenizer file at `path`.

    Raises:
      ValueError: for a file that is damaged, has a value of another type, or contradicts another.
    """
    config_file = path.with_name(CONFIG)
    map_file = path.with_name(NAMES_MAP)
    added_file = path.with_name(ADDED_TOKENS)
    config = read_object(config_file)
    names_map = read_object(map_file)
    added = read_object(added_file)
    names = _names(config_file, config)
    mapped_names = _names(map_file, names_map)
    extra = _extra(config_file, config)
    mapped_extra = _extra(map_file, names_map)
    if _ADDED in config:
        declared = list(_tokens_of_config(config_file, config[_ADDED]))
        _check_agreement(added_file, added, declared)
    else:
        names = {**names, **mapped_names}
        # Version 5 takes the further tokens of the map for ordinary ones here.
        special = {token.content for token in (*names.values(), *extra)}
        declared = list(_tokens_of_file(added_file, added, special))
        extra = extra or mapped_extra
    ordered = {}
    for role in (*ROLES, *names):
        if role in names:
            ordered[role] = names[role]
    return FilesBeside(
        config_file=config_file,
        config=config,
        names=ordered,
        extra=extra,
        declared=sorted(declared, key=lambda declared: declared.number),
    )


def add_declared_tokens(path: Path, tokenizer: Tokenizer, beside: FilesBeside) -> None:
    """Add the tokens that the files beside `path` declare to its tokenizer, as transformers does.

    Raises:
      ValueError: if a token does not get the id that a file gives it.
    """
    present = tokenizer.get_added_tokens_decoder().values()
    as_declared = {repr(token) for token in present}
    contents = {token.content for token in present}
    roles = {token.content for token in beside.names.values()}
    new_tokens = []
    for token, _, file in beside.declared:
        # The flags of `tokenizer.json` precede those that `added_tokens.json` implies.
        if file.name == ADDED_TOKENS and token.content in contents:
            continue
        if repr(token) not in as_declared:
            token.special = token.special or token.content in roles
            new_tokens.append(token)
        contents.add(token.content)
    named = (*beside.names.values(), *beside.extra)
    new_tokens += [token for token in named if token.content not in contents]
    tokenizer.add_tokens(new_tokens)
    for token, number, file in beside.declared:
        assigned = tokenizer.token_to_id(token.content)
        if assigned != number:
            holder = tokenizer.id_to_token(number)
            taken = "which is no token"
            if holder is not None:
                taken = f"which is that of {holder!r}"
            raise ValueError(
                f"{file}: {token.content!r} has the id {number}, {taken}: after {path} it gets "
                f"{assigned}. The ids of added tokens must follow those of the vocabulary, each "
                "once. Download both files again, from the same model."
            )


def read_object(path: Path) -> Json:
    """Return the object in a JSON file, empty if there is no such file."""
    return read_json(path, "Download it again.") if path.is_file() else {}


def _names(file: Path, values: Json) -> dict[str, AddedToken]:
    """Return the tokens of the keys such as `pad_token`, by role."""
    names = {}
    for key, value in values.items():
        role = key.removesuffix("_token")
        if role == key or value is None or value == "":
            continue
        # Other keys, such as `add_bos_token`, may be settings.
        if role in ROLES or isinstance(value, str) or _content(value):
            names[role] = _special(f"{file}: {key}", value)
    named = values.get(_EXTRA[0])
    if isinstance(named, dict):
        for role, value in named.items():
            names[role] = _special(f"{file}: {_EXTRA[0]}, {role}", value)
    return names


def _extra(file: Path, values: Json) -> list[AddedToken]:
    """Return the special tokens that a file lists without a role."""
    first, second = _EXTRA
    key = first if values.get(first) else second
    tokens = values.get(key) or []
    if isinstance(tokens, dict) and key == first:  # With roles, see `_names`.
        return []
    if not isinstance(tokens, list):
        raise ValueError(f"{file}: {key} must be a list of tokens, got {tokens!r:.40}.")
    return [_special(f"{file}: {key}", token) for token in tokens]


def _tokens_of_config(file: Path, tokens: object) -> Iterator[DeclaredToken]:
    if not isinstance(tokens, dict):
        raise ValueError(f"{file}: {_ADDED} must be an object, got {tokens!r:.40}.")
    for key, value in tokens.items():
        if not key.isdecimal():
            raise ValueError(
                f"{file}: {_ADDED} must have ids as keys, got {key!r:.40}."
            )
        yield DeclaredToken(_token(f"{file}: {_ADDED}, {key}", value), int(key), file)


def _tokens_of_file(
    file: Path, tokens: Json, special: set[str]
) -> Iterator[DeclaredToken]:
    for content, number in tokens.items():
        _check_id(file, content, number)
        is_special = content in special
        token = AddedToken(content, special=is_special, normalized=not is_special)
        yield DeclaredToken(token, number, file)


def _check_id(file: Path, content: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(
            f"{file}: the id of {content!r} must be a whole number, got {number!r}."
        )


def _check_agreement(file: Path, tokens: Json, declared: list[DeclaredToken]) -> None:
    """Raise ValueError for a token that `added_tokens.json` has with another id, or alone."""
    numbers = {token.content: number for token, number, _ in declared}
    for content, number in tokens.items():
        _check_id(file, content, number)
        if numbers.get(content) != number:
            raise ValueError(
                f"{file} gives {content!r} the id {number}, but {_ADDED} of {CONFIG} next to it "
                f"gives it {numbers.get(content, 'none')}. Delete the file that is not the model's."
            )


def _special(place: str, value: object) -> AddedToken:
    """Return a special token of its name alone, or with flags."""
    if isinstance(value, str):
        return AddedToken(value, special=True, normalized=False)
    token = _token(place, value)
    token.special = True
    return token


def _token(place: str, value: object) -> AddedToken:
    content = _content(value)
    if not isinstance(value, dict) or not content:
        raise ValueError(f"{place} must be a text, got {value!s:.40}.")
    flags = {flag: value[flag] for flag in _FLAGS if flag in value}
    for flag, is_set in flags.items():
        if not isinstance(is_set, bool):
            raise ValueError(
                f"{place}: {flag} must be true or false, got {is_set!r:.40}."
            )
    return AddedToken(content, **flags)


def _content(value: object) -> str:
    """Return the text of a token with flags, empty if there is none."""
    content = value.get("content") if isinstance(value, dict) else None
    return content if isinstance(content, str) else ""
