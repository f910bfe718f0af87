"""The tokenizers that classes of transformers build from a vocabulary.

Version 5 takes the vocabulary and the added tokens of a `tokenizer.json` alone if the class in
`tokenizer_config.json` has a tokenizer of its own, such as `BertTokenizer`: normalizer,
pre-tokenizer and special tokens around a text are those of the class. Version 4 keeps those of
`tokenizer.json`, with the settings of `tokenizer_config.json`. Where both agree, their tokenizer is
ours; where they do not, it is refused. `PreTrainedTokenizerFast` is what `tokenizer.json` says.
(transformers 5.24: `tokenization_utils_tokenizers`, `tokenization_auto` and the modules of the
classes; version 4: `BertTokenizerFast` and `RobertaTokenizerFast`)
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.normalizers import BertNormalizer, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer

from pe_jax.common.files import Json
from pe_jax.interop.special_tokens import (
    Template,
    bert_template,
    control_names,
    row_template,
)
from pe_jax.interop.tokenizer_config import CONFIG, FilesBeside, read_object

# By key of `tokenizer_config.json`: the argument of BERT's normalizer, and its default.
BERT_SETTINGS = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
PREFIX_SPACE = "add_prefix_space"

BERT_NAMES = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
}
_ROBERTA_NAMES = {
    "bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>",
    "mask": "<mask>",
}  # fmt: skip


class TokenizerClass(NamedTuple):
    """What a class builds: the type of its model, and the names of its special tokens."""

    model: str
    names: Mapping[str, str]  # Defaults, by role.


_BERT = TokenizerClass("WordPiece", BERT_NAMES)
_MPNET = TokenizerClass("WordPiece", {**_ROBERTA_NAMES, "unk": "[UNK]"})
_ROBERTA = TokenizerClass("BPE", _ROBERTA_NAMES)
_XLM_ROBERTA = TokenizerClass("Unigram", _ROBERTA_NAMES)
# By name, without `Tokenizer` and `Fast`.
_CLASSES = {
    "Bert": _BERT,
    "DistilBert": _BERT,
    "Electra": _BERT,
    "MobileBert": _BERT,
    "SqueezeBert": _BERT,
    "LayoutLM": _BERT,
    "Lxmert": _BERT,
    "MPNet": _MPNET,
    "Roberta": _ROBERTA,
    "Bart": _ROBERTA,
    "LED": _ROBERTA,
    "Longformer": _ROBERTA,
    "XLMRoberta": _XLM_ROBERTA,
}
# They are what tokenizer.json says, whatever the settings of a class.
_GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
# They split a text by code in Python, or by the words of Jieba, and not by tokenizer.json.
_BY_CODE = (
    "BertJapanese", "Bertweet", "Canine", "Esm", "Flaubert", "Phobert", "RoCBert", "RoFormer",
    "Tapas", "XLM",
)  # fmt: skip
# By `model_type` of config.json, where no file names the class.
_CLASS_OF_MODEL = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mobilebert": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "squeezebert": "BertTokenizer",
    "layoutlm": "BertTokenizer",
    "lxmert": "BertTokenizer",
    "convbert": "ConvBertTokenizer",
    "roberta": "RobertaTokenizer",
    "longformer": "RobertaTokenizer",
    "bart": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "gte": "XLMRobertaTokenizer",
    "mpnet": "MPNetTokenizer",
    "roformer": "RoFormerTokenizer",
}
# Whatever class their files name.
_GENERIC_MODELS = ("modernbert", "modernbert-decoder")

# Texts that pipelines of published tokenizers split differently.
_PROBES = (
    "A caf\u00e9 in NA\u00cfVE co-op's snake_case, foo_bar!  It's 3.5% of #12 (x) \u4e2d\u6587x",
    " \u0130stanbul\t\uff21\u2603 \x07bell e\u0301 \u00ad.\n\nThe \u00bd \u2014 a/b ",
)


def declared_class(path: Path, beside: FilesBeside) -> tuple[str, Path]:
    """Return the class that reads the tokenizer at `path` in transformers, empty if no file says,
    and the file that says so.

    Raises:
      ValueError: if config.json next to it is damaged, or a class is no text.
    """
    model_file = path.with_name("config.json")
    model = read_object(model_file)
    if model.get("model_type") in _GENERIC_MODELS:
        return _GENERIC[0], model_file
    for file, values in ((beside.config_file, beside.config), (model_file, model)):
        name = values.get("tokenizer_class")
        if name is not None and not isinstance(name, str):
            raise ValueError(
                f"{file}: tokenizer_class must be a text, got {name!r:.40}."
            )
        if name:
            return name, file
    return _CLASS_OF_MODEL.get(str(model.get("model_type")), ""), model_file


def known_class(name: str) -> TokenizerClass | None:
    """Return what the class of a name builds, None if it builds nothing or is not known."""
    return _CLASSES.get(_stem(name))


def splits_as_bert(name: str) -> bool:
    """Return True if the class of a name is BERT's tokenizer, which needs a `vocab.txt` alone."""
    # In version 5 ConvBERT's class takes all of a tokenizer.json.
    return known_class(name) is _BERT or _stem(name) == "ConvBert"


def bert_settings(file: Path, config: Json) -> dict[str, bool | None]:
    """Return the arguments of BERT's normalizer that a `tokenizer_config.json` gives, or defaults.

    Raises:
      ValueError: for a value of another type.
    """
    settings = {}
    for key, (argument, default) in BERT_SETTINGS.items():
        value = _flag(file, config, key)
        settings[argument] = default if value is None else value
    return settings


def follow_config(path: Path, tokenizer: Tokenizer, beside: FilesBeside) -> None:
    """Give the tokenizer of a `tokenizer.json` the settings of the `tokenizer_config.json` next to
    it, in place, as the class does that this file names, or that transformers takes for the
    `model_type` of config.json.

    Raises:
      ValueError: if the class builds another tokenizer, in one of the versions of transformers;
        the message names both files.
    """
    file, config = beside.config_file, beside.config
    # Without this file, by config.json alone.
    name, class_file = declared_class(path, beside)
    if _stem(name) in _BY_CODE:
        raise ValueError(
            f"{class_file}: tokenizer_class={name!r} splits a text by code of its own, not as "
            f"{path} says. To use {path.name} as it is, set tokenizer_class of {file.name} to "
            f'"{_GENERIC[0]}".'
        )
    builder = known_class(name)
    if builder is None:
        if name not in _GENERIC:
            _check_bert_settings(path, tokenizer, file, config)
        _check_prefix_space(path, tokenizer, file, config)
        return
    has_bert_normalizer = isinstance(tokenizer.normalizer, BertNormalizer)
    if builder.model == "WordPiece" and has_bert_normalizer:
        _follow_bert(path, tokenizer, file, config)
    if builder is _ROBERTA and isinstance(tokenizer.pre_tokenizer, ByteLevel):
        _follow_prefix_space(path, tokenizer, file, config)
    names = {
        role: beside.name(role, default) for role, default in builder.names.items()
    }
    difference = difference_from_class(tokenizer, name, config, names)
    if not difference:
        difference = _undeclared(tokenizer, beside)
    if difference:
        raise ValueError(
            f"{class_file}: tokenizer_class={name!r} builds another tokenizer in transformers 5 "
            f"than {path} has: {difference}. To use {path.name} as it is, as transformers 4 does, "
            f'set tokenizer_class of {file.name} to "{_GENERIC[0]}".'
        )


def difference_from_class(
    tokenizer: Tokenizer, name: str, config: Json, names: Mapping[str, str]
) -> str:
    """Return how the tokenizer that a class builds of the same vocabulary differs, empty if it has
    the same tokens.

    Args:
      name: a class that `known_class` knows.
      config: the settings of the class.
      names: its special tokens, by role.
    """
    builder = _CLASSES[_stem(name)]
    model = json.loads(tokenizer.model.__getstate__())
    if model["type"] != builder.model:
        return f"its model is {builder.model}, not {model['type']}"
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    if vocab and max(vocab.values()) >= len(vocab):
        return "its added tokens have the ids that follow those of the vocabulary"
    for key, (expected, accepted) in _model_settings(builder, names, vocab).items():
        if model.get(key) not in accepted:
            return f"{key} of its model is {expected!r}, not {model.get(key)!r}"
    normalizer, splitter = _components(builder, tokenizer, config)
    for text in _PROBES:
        theirs = _pieces(normalizer, splitter, text)
        ours = _pieces(tokenizer.normalizer, tokenizer.pre_tokenizer, text)
        for their_piece, our_piece in zip([*theirs, None], [*ours, None]):
            if their_piece != our_piece:
                return f"in {text!r} it has {their_piece!r} where {our_piece!r} is here"
    begin, end = names["cls"], names["sep"]
    if builder is _XLM_ROBERTA:
        begin, end = names["bos"], names["eos"]
    begin_id = tokenizer.token_to_id(begin)
    end_id = tokenizer.token_to_id(end)
    if begin_id is None or end_id is None:
        return f"it needs the tokens {begin!r} and {end!r}"
    for pair in (False, True):
        expected = _template(builder, begin_id, end_id, pair=pair)
        found = row_template(tokenizer, pair=pair)
        if not _are_equal(expected, found):
            return (
                f"a row of {1 + pair} text(s) has the special tokens {_shown(expected)}, "
                f"not {_shown(found)}"
            )
    return ""


def _stem(name: str) -> str:
    return name.removesuffix("Fast").removesuffix("Tokenizer")


def _flag(file: Path, config: Json, key: str) -> bool | None:
    value = config.get(key)
    if not isinstance(value, bool | None):
        raise ValueError(f"{file}: {key} must be true or false, got {value!r:.40}.")
    return value


def _follow_bert(path: Path, tokenizer: Tokenizer, file: Path, config: Json) -> None:
    normalizer = tokenizer.normalizer
    assert isinstance(normalizer, BertNormalizer)
    if config.get("do_lower_case") is None and not normalizer.lowercase:
        raise ValueError(
            f"{file} lacks do_lower_case, which is then true in transformers, but {path} has "
            f'lowercase=false. Write "do_lower_case": false to {file.name} if the model is cased.'
        )
    settings: Any = bert_settings(file, config)
    tokenizer.normalizer = BertNormalizer(clean_text=normalizer.clean_text, **settings)


def _follow_prefix_space(
    path: Path, tokenizer: Tokenizer, file: Path, config: Json
) -> None:
    splitter = tokenizer.pre_tokenizer
    assert isinstance(splitter, ByteLevel)
    adds_space = _flag(file, config, PREFIX_SPACE)
    if adds_space is None and splitter.add_prefix_space:
        raise ValueError(
            f"{file} lacks {PREFIX_SPACE}, which is then false in transformers, but {path} has "
            f'{PREFIX_SPACE}=true. Write "{PREFIX_SPACE}": true to {file.name} to keep it.'
        )
    tokenizer.pre_tokenizer = ByteLevel(
        add_prefix_space=bool(adds_space), use_regex=splitter.use_regex
    )


def _check_bert_settings(
    path: Path, tokenizer: Tokenizer, file: Path, config: Json
) -> None:
    """Raise ValueError for a setting that another class may follow or not."""
    normalizer = tokenizer.normalizer
    if not isinstance(normalizer, BertNormalizer):
        return
    for key, (argument, _) in BERT_SETTINGS.items():
        value, here = _flag(file, config, key), getattr(normalizer, argument)
        if value is not None and value != here:
            _refuse_setting(path, file, key, value, argument, here)


def _check_prefix_space(
    path: Path, tokenizer: Tokenizer, file: Path, config: Json
) -> None:
    """Raise ValueError if version 4 follows the setting and version 5 does not."""
    splitter = tokenizer.pre_tokenizer
    value = _flag(file, config, PREFIX_SPACE)
    if not isinstance(splitter, ByteLevel) or value is None:
        return
    here = splitter.add_prefix_space
    if value != here:
        _refuse_setting(path, file, PREFIX_SPACE, value, PREFIX_SPACE, here)


def _refuse_setting(
    path: Path,
    file: Path,
    key: str,
    value: bool | None,
    argument: str,
    here: bool | None,
) -> None:
    raise ValueError(
        f"{file} has {key}={json.dumps(value)}, but {path} has {argument}={json.dumps(here)}. "
        f"Delete {key} from {file.name} to use {path.name} as it is."
    )


def _model_settings(
    builder: TokenizerClass, names: Mapping[str, str], vocab: Mapping[str, int]
) -> dict[str, tuple[object, tuple[object, ...]]]:
    """Return what a class sets of its model: the value, and all that mean the same."""
    if builder.model == "WordPiece":
        settings = {
            "unk_token": names["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }
        return {key: (value, (value,)) for key, value in settings.items()}
    if builder.model == "Unigram":
        return {"unk_id": (3, (3,)), "byte_fallback": (False, (False, None))}
    absent = (None, (None, "", False))
    keys = ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"]
    keys += ["byte_fallback", "ignore_merges"]
    if not vocab.keys() >= {*ByteLevel.alphabet()}:  # Otherwise nothing is unknown.
        keys.append("unk_token")
    return dict.fromkeys(keys, absent)


def _components(
    builder: TokenizerClass, tokenizer: Tokenizer, config: Json
) -> tuple[Normalizer | None, PreTokenizer]:
    """Return normalizer and pre-tokenizer of a class; XLM-R's charsmap is that of the tokenizer."""
    if builder.model == "WordPiece":
        settings: Any = bert_settings(Path(CONFIG), config)
        return BertNormalizer(**settings), pre_tokenizers.BertPreTokenizer()
    if builder.model == "BPE":
        return None, ByteLevel(add_prefix_space=bool(config.get(PREFIX_SPACE)))
    charsmap = next(_charsmaps(tokenizer.normalizer), None)
    normalizer = None if charsmap is None else normalizers.Precompiled(charsmap)
    scheme: Any = "never" if config.get(PREFIX_SPACE) is False else "always"
    pieces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return normalizer, pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pieces]
    )


def _charsmaps(normalizer: Normalizer | None) -> Iterator[bytes]:
    if normalizer is None:
        return
    state = json.loads(normalizer.__getstate__())
    for part in state.get("normalizers", [state]):
        if part["type"] == "Precompiled" and part["precompiled_charsmap"]:
            yield base64.b64decode(part["precompiled_charsmap"])


def _pieces(
    normalizer: Normalizer | None, splitter: PreTokenizer | None, text: str
) -> list[str]:
    if normalizer is not None:
        text = normalizer.normalize_str(text)
    if splitter is None:
        return [text]
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


def _template(builder: TokenizerClass, begin: int, end: int, *, pair: bool) -> Template:
    if builder is _BERT:
        return bert_template([begin], [end], pair=pair)
    first = np.array([begin], np.int32)
    last = np.array([end], np.int32)
    between = np.repeat(last, 2 if pair else 0)
    return Template(first, between, last, None)


def _are_equal(one: Template, other: Template) -> bool:
    return (
        np.array_equal(one.before, other.before)
        and np.array_equal(one.between, other.between)
        and np.array_equal(one.after, other.after)
        and one.second == other.second
    )


def _shown(template: Template) -> str:
    before, between, after = (part.tolist() for part in template[:3])
    text = f"{before} {between} {after}"
    if template.second is not None:
        text += f", type 1 from {template.second} on"
    return text


def _undeclared(tokenizer: Tokenizer, beside: FilesBeside) -> str:
    """Return the added tokens that a class loses, as `tokenizer_config.json` lists others."""
    if "added_tokens_decoder" not in beside.config:
        return ""
    declared = {declared.token.content for declared in beside.declared}
    named = {token.content for token in (*beside.names.values(), *beside.extra)}
    # A token of the vocabulary is special there by its role alone; others would get other ids.
    words = tokenizer.get_vocab(with_added_tokens=False)
    by_role = (control_names(tokenizer) | named) & words.keys()
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    lost = sorted(added - declared - by_role)
    if not lost:
        return ""
    return f"it lacks the added token(s) {', '.join(map(repr, lost[:5]))}"
