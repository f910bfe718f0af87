"""Does a published BERT compute here what it does in PyTorch?

    python benchmarks/parity.py --checkpoint=FOLDER

Reads a Hugging Face folder here and in transformers (the extra `parity`), gives both the same
tokens, two token types and padding, in float32, and prints the largest difference of every layer's
hidden states, at tokens and at padding, and of the logits of the pretraining heads, if it has them.
What each rounds away by itself stands beside: its difference from PyTorch in float64.
"""

import json
from pathlib import Path

import jax
import numpy as np
import tokenizers
import torch
import transformers
from absl import app, flags

from pe_jax.interop import load_encoder
from pe_jax.models import BertForPretraining, hidden_states
from pe_jax.trainer.data import open_corpus

_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "Folder of a BERT.", required=True
)
_TOKENS = flags.DEFINE_enum(
    "tokens", "text", ["text", "random"], "English, or ids at random."
)
_ROWS = flags.DEFINE_integer("rows", 8, "Of the batch, evenly shorter from row to row.")
_LENGTH = flags.DEFINE_integer("length", 128, "Of the longest row, tokens.")
_SHORTEST = flags.DEFINE_integer("shortest", 16, "Tokens of the shortest row.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")


def inputs(folder, config):
    """Tokens, token types and which of them are no padding: rows get shorter one by one."""
    shape = rows, length = _ROWS.value, _LENGTH.value
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, shape)
    if _TOKENS.value == "text":
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        ids = tokenizer.encode("\n".join(open_corpus("pydoc").documents())).ids
        tokens = np.resize(ids, shape)
    lengths = np.linspace(length, _SHORTEST.value, rows).round().astype(int)[:, None]
    place = np.arange(length)
    second = (place >= lengths // 2) & (place < lengths)
    tokens = np.where(place < lengths, tokens, 0)
    return tokens, np.where(second, config.num_token_types - 1, 0), place < lengths


def here(folder, tokens, token_type_ids, valid):
    """Names to arrays: hidden states by layer, logits of the heads that are there."""
    encoder = load_encoder(folder)
    config, params, absent = encoder.config, encoder.params, encoder.absent
    states = jax.jit(hidden_states, static_argnums=0)(
        config, params["bert"], tokens, token_type_ids, valid
    )
    found = {f"hidden states {i}": np.asarray(state) for i, state in enumerate(states)}
    if absent:
        return found
    everywhere = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
    run = jax.jit(BertForPretraining(config).apply)
    logits = run(
        {"params": params}, tokens, token_type_ids, valid, masked_positions=everywhere
    )
    found["masked-LM logits"] = np.asarray(logits.masked_lm)
    return found | {"next-sentence logits": np.asarray(logits.next_sentence)}


def there(folder, dtype, tokens, token_type_ids, valid):
    """The same of transformers."""
    model = transformers.BertForPreTraining.from_pretrained(folder, dtype=dtype).eval()
    with torch.inference_mode():
        out = model(
            input_ids=torch.tensor(tokens),
            token_type_ids=torch.tensor(token_type_ids),
            attention_mask=torch.tensor(valid),
            output_hidden_states=True,
        )
    found = {
        f"hidden states {i}": state.numpy() for i, state in enumerate(out.hidden_states)
    }
    return found | {
        "masked-LM logits": out.prediction_logits.numpy(),
        "next-sentence logits": out.seq_relationship_logits.numpy(),
    }


def differences(ours, theirs, exact, valid):
    """The largest of each kind; logits of a whole row stand with its tokens."""
    at = valid if ours.shape[:2] == valid.shape else np.ones(len(valid), bool)
    largest = lambda a, b, where: float(np.abs(a - b)[where].max(initial=0))
    return {
        "tokens": largest(ours, theirs, at),
        "padding": largest(ours, theirs, ~at),
        "here_float64": largest(ours, exact, ...),
        "pytorch_float64": largest(theirs, exact, ...),
    }


def main(argv):
    del argv
    transformers.logging.set_verbosity_error()
    folder = Path(_CHECKPOINT.value)
    batch = inputs(folder, load_encoder(folder).config)
    ours = here(folder, *batch)
    theirs, exact = (
        there(folder, dtype, *batch) for dtype in (torch.float32, torch.float64)
    )
    found = {n: differences(ours[n], theirs[n], exact[n], batch[-1]) for n in ours}
    shape = f"{_ROWS.value} rows of {_LENGTH.value} to {_SHORTEST.value} tokens ({_TOKENS.value})"
    print(f"{shape}, max |difference|")
    print("| | at tokens | at padding | here, of float64 | PyTorch, of float64 |")
    print("|---|---|---|---|---|")
    for name, each in found.items():
        print(
            f"| {name} | "
            + " | ".join(f"{value:.1e}" for value in each.values())
            + " |"
        )
    if _OUT.value:
        facts = {"tokens": _TOKENS.value, "rows": _ROWS.value, "length": _LENGTH.value}
        Path(_OUT.value).write_text(
            json.dumps({**facts, "differences": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    app.run(main)
