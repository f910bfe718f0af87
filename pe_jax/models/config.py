"""The config of a model, named sizes, and the keys of a run that change them.

Nothing here imports JAX until an encoding is built: `--help` reads the keys.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pe_jax.common.errors import did_you_mean
from pe_jax.common.schema import Config, field, optional_keys
from pe_jax.common.values import FLAG, Validator, integer, number, one_of, optional

if TYPE_CHECKING:
    from pe_jax.encodings import PositionEncoding

# No model is near the upper ends: they are for a config.json that is damaged or hostile.
LAYERS = integer(1, 10**4)
WIDTH = integer(1, 10**6)
HEADS = integer(1, 10**5)
INTERMEDIATE = integer(1, 10**7)


def _is_position(value: object) -> bool:
    if isinstance(value, str):
        return bool(value) and "\0" not in value
    from pe_jax.encodings import PositionEncoding

    return isinstance(value, PositionEncoding)


_POSITION = Validator(
    str, lambda: "the name of an encoding, or a PositionEncoding", _is_position
)

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")

# Settings of ModernBERT (Warner et al. 2024): the differences from BERT's, which are the defaults.
MODERNBERT: dict[str, Any] = {
    "position": "cycle(rope(base=160000), "
    "rope+window(max_distance=64), rope+window(max_distance=64))",
    "max_length": 8192,
    "pre_norm": True,
    "first_norm": False,
    "final_norm": True,
    "norm_bias": False,
    "layer_norm_epsilon": 1e-5,
    "num_token_types": 0,
    "attention_bias": False,
    "gated_mlp": True,
    "up_bias": False,
    "down_bias": False,
    "head_bias": False,
    "pooler": "head",
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}


def _bert(layers: int, width: int, intermediate: int = 0) -> dict[str, Any]:
    """Return the sizes of a BERT, whose heads are of size 64."""
    return {
        "num_layers": layers,
        "hidden_size": width,
        "num_heads": width // 64,
        "intermediate_size": intermediate or 4 * width,
    }


# Fields of BertConfig by named size: of Turc et al. 2019 and Devlin et al. 2018, then ModernBERT's,
# and Ettin's (Weller et al. 2025).
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _bert(2, 128),
    "mini": _bert(4, 256),
    "small": _bert(4, 512),
    "medium": _bert(8, 512),
    "base": _bert(12, 768),
    "large": _bert(24, 1024),
    "ettin_17m": _bert(7, 256, 384) | MODERNBERT,
    "ettin_32m": _bert(10, 384, 576) | MODERNBERT,
    "ettin_68m": _bert(19, 512, 768) | MODERNBERT,
    "modernbert_base": _bert(22, 768, 1152) | MODERNBERT,
    "modernbert_large": _bert(28, 1024, 2624) | MODERNBERT,
}


@dataclasses.dataclass(frozen=True)
class BertConfig(Config):
    """Everything about an encoder but its parameters; the defaults are BERT-base's.

    Devlin et al. 2018 describe the sizes. The settings from `pre_norm` on are those in which other
    encoders differ. Config files have no keys for them: a named size or a published model sets
    them. Parameters, softmax, norms, angles and losses are float32 whatever `dtype` is.

    Attributes:
      hidden_size: D; num_heads divides it, the head size is d = D / H.
      position: the position encoding, or its name, see `pe_jax.encodings.from_name`.
      vocab_size: V, rows of the token embedding, but for `unused_rows` after them.
      pre_norm: each sublayer normalises its input and adds to it; else the sum is normalised.
      norm: of all normalisations, of which `rms_norm` has no bias.
      embedding_norm, final_norm: of the embeddings, and of the output of the last layer.
      first_norm: whether the first layer has `attention_norm`.
      gated_mlp: the MLP is down(activation(gate) · up), GeGLU with `gelu`, SwiGLU with `silu`.
      num_key_heads: heads of keys and values, a divisor of the number of heads; None means equal.
      num_token_types: rows of the token type embedding; 0 means that there is none.
      unused_rows: rows of the token embedding after those of the vocabulary, which published models
        have for speed; they are kept, and never predicted.
      positions_from_mask: positions that are added to the input count tokens, not padding, so that
        padding may come first; else they count from the start of a row.
      head_dense: whether the masked-LM head has a dense layer (`head_bias`, `head_activation`) and
        a normalisation (`head_norm`) before its output layer.
      tied_decoder: the output layer is the token embedding.
      pooler: what a classifier reads a whole input through: a dense layer and tanh (`tanh`), or
        layers like those of the masked-LM head before its output layer (`head`), which the output
        layer of spans then has as well.
      classifier_pooling: what the pooler reads: the first token (`cls`), or the mean over tokens;
        `late` applies its layers to each token and takes the mean of the results.
      pooler_activation: of the pooler's dense layer, unless `pooler` is `head`.
      embedding_size: of the embeddings of tokens, types and positions and of their norm, if it is
        not D; a dense layer, `embedding_projection`, follows, and the masked-LM head ends at it.
      attention_head_size: d, if it is not D / H; then num_heads need not divide D.
      shared_layers: all layers have the parameters of one, `layer_0`.
      scale_logits: the products of queries and keys are divided by sqrt(d).
      conv_kernel: width of a convolution over the input of the first layer, whose output, through
        `conv_activation`, is added to that layer's and normalised; 0 means that there is none.
      rescaled_token: the token (of a mask) whose embedding is zero, while those of the others are
        multiplied by 0.88 / (1 - its share of the tokens); None rescales nothing.
      sublayer_norm: with `pre_norm`, what a sublayer adds is normalised too: four norms a layer.
      query_key_norm: each head's queries and keys are normalised before positions act on them.

    Raises:
      ValueError: for values that are not accepted or do not fit one another, or an unknown
        encoding, with close matches.
    """

    num_layers: int = field(12, LAYERS, "The encoder has this many layers.")
    hidden_size: int = field(
        768, WIDTH, "Hidden states have this many dimensions (D); num_heads divides it."
    )
    num_heads: int = field(
        12,
        HEADS,
        "Attention has this many heads (H), of hidden_size / num_heads dimensions "
        "each.",
    )
    intermediate_size: int = field(
        3072, INTERMEDIATE, "Feed-forward layers have this many hidden units."
    )
    position: str | PositionEncoding = field(
        "learned_absolute",
        _POSITION,
        'The position encoding has this name (docs/encodings.md): "learned_absolute" '
        "in a BERT, or another, with options and several joined, such as "
        '"rope(base=500)+alibi".',
    )
    max_length: int = field(
        512,
        integer(1, 10**7),
        "A learned table of positions has this many rows: 512 in a BERT, 8,192 in a "
        "ModernBERT.",
    )
    dropout_rate: float = field(
        0.1,
        number(0, 1, "[)"),
        "Dropout sets this fraction of embeddings and of sublayers' outputs to 0: 0.1 "
        "in a BERT, 0 in a ModernBERT.",
    )
    attention_dropout_rate: float = field(
        0.1,
        number(0, 1, "[)"),
        "Dropout sets this fraction of attention weights to 0: 0.1 in a BERT, 0 in a "
        "ModernBERT.",
    )
    initializer_stddev: float = field(
        0.02,
        number(0, 100, "(]"),
        "Initial weights have this standard deviation: 0.02 in a BERT; about "
        "1/sqrt(hidden_size) suits a small model.",
    )
    dtype: str = field(
        "float32",
        one_of(("float32", "bfloat16")),
        'The model computes in this dtype, "float32" or "bfloat16"; parameters, '
        "softmax, norms and losses are float32 in both.",
    )
    implementation: str = field(
        "auto",
        one_of(
            "pe_jax.attention.implementations:NAMES",
            "auto",
            renamed={"buckets": "table"},
        ),
        "Attention runs in this implementation: auto chooses one of naive, table, "
        "fused, kernel and cudnn (docs/performance.md).",
    )
    scan_layers: bool = field(
        False, FLAG, "All layers are compiled as one loop, which compiles faster."
    )
    remat: str = field(
        "none",
        one_of("pe_jax.models.bert:REMAT"),
        'The backward pass recomputes nothing ("none"), or, for less memory and more '
        'time, all but products of matrices ("dots") or everything ("full").',
    )
    vocab_size: int = field(30_522, integer(1, 10**8), internal=True)
    pre_norm: bool = field(False, FLAG, internal=True)
    norm: str = field("layer_norm", one_of(("layer_norm", "rms_norm")), internal=True)
    norm_bias: bool = field(True, FLAG, internal=True)
    layer_norm_epsilon: float = field(1e-12, number(1e-38, 1), internal=True)
    embedding_norm: bool = field(True, FLAG, internal=True)
    first_norm: bool = field(True, FLAG, internal=True)
    final_norm: bool = field(False, FLAG, internal=True)
    activation: str = field("gelu", one_of(ACTIVATIONS), internal=True)
    gated_mlp: bool = field(False, FLAG, internal=True)
    attention_bias: bool = field(True, FLAG, internal=True)
    up_bias: bool = field(True, FLAG, internal=True)
    down_bias: bool = field(True, FLAG, internal=True)
    num_key_heads: int | None = field(None, optional(HEADS), internal=True)
    num_token_types: int = field(2, integer(0, 10**5), internal=True)
    unused_rows: int = field(0, integer(0, 10**8), internal=True)
    positions_from_mask: bool = field(False, FLAG, internal=True)
    head_dense: bool = field(True, FLAG, internal=True)
    head_bias: bool = field(True, FLAG, internal=True)
    head_activation: str = field("gelu", one_of(ACTIVATIONS), internal=True)
    head_norm: bool = field(True, FLAG, internal=True)
    tied_decoder: bool = field(True, FLAG, internal=True)
    decoder_bias: bool = field(True, FLAG, internal=True)
    pooler: str = field("tanh", one_of(("tanh", "head")), internal=True)
    classifier_pooling: str = field(
        "cls", one_of(("cls", "mean", "late")), internal=True
    )
    pooler_activation: str = field(
        "tanh", one_of((*ACTIVATIONS, "tanh")), internal=True
    )

    embedding_size: int | None = field(None, optional(WIDTH), internal=True)
    attention_head_size: int | None = field(None, optional(WIDTH), internal=True)
    shared_layers: bool = field(False, FLAG, internal=True)
    scale_logits: bool = field(True, FLAG, internal=True)
    conv_kernel: int = field(0, integer(0, 10**3), internal=True)
    conv_activation: str = field("tanh", one_of((*ACTIVATIONS, "tanh")), internal=True)
    rescaled_token: int | None = field(None, optional(integer(0, 10**8)), internal=True)
    sublayer_norm: bool = field(False, FLAG, internal=True)
    query_key_norm: bool = field(False, FLAG, internal=True)

    def errors(self) -> Iterator[str]:
        if self.norm == "rms_norm" and self.norm_bias:
            yield "norm_bias is True, but rms_norm has no bias: give norm_bias=False."
        if self.sublayer_norm and not self.pre_norm:
            yield "sublayer_norm is True, but pre_norm is False: the sums are normalised already."
        if self.hidden_size % self.num_heads and not self.attention_head_size:
            yield f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}."
        if self.num_heads % self.key_heads:
            yield f"num_key_heads {self.key_heads} does not divide num_heads {self.num_heads}."
        if self.conv_kernel and self.conv_kernel % 2 == 0:
            yield f"conv_kernel must be odd or 0, got {self.conv_kernel}."
        try:
            encoding = self.encoding()
        except ValueError as error:
            name = f" {self.position!r}"  # Once, if the message has it too.
            yield f"position{'' if name in str(error) else name}: {error}"
            return
        if self.shared_layers and not self.first_norm:
            yield "first_norm is False, but shared_layers needs the same norms in all layers."
        if self.shared_layers and any(x != encoding.layers[0] for x in encoding.layers):
            yield (
                f"position {encoding.name!r} differs between layers, which shared_layers does not "
                "support."
            )

    @property
    def head_size(self) -> int:
        """Size d of a head."""
        return self.attention_head_size or self.hidden_size // self.num_heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_heads or self.num_heads

    @property
    def embedding_width(self) -> int:
        """Size of the embeddings of tokens."""
        return self.embedding_size or self.hidden_size

    def encoding(self) -> PositionEncoding:
        """Return the position encoding, built for these sizes where `position` is a name.

        Raises:
          ValueError: for a name or options that are not known, or sizes that do not fit them.
        """
        from pe_jax import encodings

        if isinstance(self.position, encodings.PositionEncoding):
            return self.position
        encoding_of_width = functools.partial(
            _encoding,
            self.position,
            head_size=self.head_size,
            num_heads=self.num_heads,
            max_length=self.max_length,
        )
        encoding = encoding_of_width(hidden_size=self.hidden_size)
        if self.embedding_width == self.hidden_size:
            return encoding
        narrow = encoding_of_width(hidden_size=self.embedding_width)
        # What is added to the embeddings has their size.
        parts = []
        for part, small in zip(encoding.parts, narrow.parts, strict=True):
            parts.append(small if small.embed else part)
        return dataclasses.replace(encoding, parts=tuple(parts))


@functools.lru_cache(maxsize=256)
def _encoding(name: str, **sizes: int) -> PositionEncoding:
    from pe_jax import encodings

    return encodings.from_name(name, **sizes)


SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
_INTERNAL = [x.name for x in dataclasses.fields(BertConfig) if x.metadata["internal"]]
# The settings in which encoders differ.
ARCHITECTURE = tuple(name for name in _INTERNAL if name != "vocab_size")


def preset(name: str, **changes: Any) -> BertConfig:
    """Return the BertConfig of a named size, such as tiny, base or modernbert_base; see `PRESETS`.

    Raises:
      ValueError: for a name that is not a preset, or changes that `BertConfig` refuses.
    """
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise ValueError(
            f"Unknown model size {name!r}.{hint} Use one of {', '.join(PRESETS)}."
        )
    return BertConfig(**{**PRESETS[name], **changes})


def with_tokens(config: BertConfig, tokens: int) -> BertConfig:
    """Return `config` for a tokenizer of `tokens` tokens: the rows after theirs become unused.

    Raises:
      ValueError: if the token embedding has fewer rows.
    """
    rows = config.vocab_size + config.unused_rows
    if tokens > rows:
        raise ValueError(
            f"The tokenizer has {tokens:,} tokens, but the model {rows:,} rows of embeddings: they "
            "belong to different models."
        )
    return dataclasses.replace(config, vocab_size=tokens, unused_rows=rows - tokens)


@dataclasses.dataclass(frozen=True)
class ModelChanges(optional_keys(BertConfig)):  # type: ignore[misc]
    """What a run's config says of its model, `config.model`; `resolve` returns the model.

    A key that is None has the value of the model at `config.init`, or else of the named size.
    """

    size: str | None = field(
        None,
        optional(one_of(PRESETS)),
        "The model has the sizes of this name: tiny, mini, small, medium, base "
        "(default), large, or a ModernBERT. Keys of the model that are None have the "
        "value of the size, or of the model at init.",
    )

    def resolve(self, start: BertConfig | None = None) -> BertConfig:
        """Return `start`, by default the named size, with the values that are given.

        Raises:
          ValueError: for values that `BertConfig` refuses.
        """
        changes = dict(vars(self))
        del changes["size"]
        changes = {name: value for name, value in changes.items() if value is not None}
        try:
            if start is None:
                return preset(self.size or "base", **changes)
            return dataclasses.replace(start, **changes)
        except ValueError as error:
            raise ValueError(f"config.model.{error}") from error
