"""A small byte-level BPE tokenizer, as ModernBERT's and RoBERTa's are."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


def byte_level(size, special=SPECIAL):
    """A tokenizer of `size` tokens: special ones, letters with and without a space, words."""
    letters = list("abcdefghij")
    tokens = [
        *special,
        *letters,
        "\u0120",
        *(f"\u0120{x}" for x in letters),
        "ab",
        "\u0120ab",
        "cd",
    ]
    tokens += [f"filler{i}" for i in range(size - len(tokens))]
    merges = [("\u0120", "a"), ("\u0120a", "b"), ("a", "b"), ("c", "d")]
    unknown = "<unk>" if "<unk>" in special else special[1]
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)}, merges, unk_token=unknown
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    cls, sep = ((token, special.index(token)) for token in special[2:4])
    tokenizer.post_processor = processors.RobertaProcessing(
        sep, cls, add_prefix_space=False
    )
    return tokenizer


def byte_level_for(theirs):
    """A tokenizer for a config.json; MPNet's code needs padding to be token 1."""
    special = (
        ["<unk>", "<pad>", *SPECIAL[2:]] if theirs["model_type"] == "mpnet" else SPECIAL
    )
    return byte_level(theirs["vocab_size"], special)
