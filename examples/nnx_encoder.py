"""A pretrained BERT as a Flax NNX module, fine-tuned to tell texts from the same words shuffled.

    python train.py --config=configs/quickstart.py --workdir=W
    python examples/nnx_encoder.py --init=W

--init is a run of pe_jax or the folder of a published BERT. The task cannot be solved without
positions: chance is 50 %.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pe_jax import interop, trainer
from pe_jax.models import Bert
from pe_jax.trainer.data import load_tokenizer, open_corpus


class Classifier(nnx.Module):
    def __init__(self, config, params, *, rngs):
        self.encoder = nnx.bridge.ToNNX(Bert(config), rngs).lazy_init(
            jnp.zeros((1, 8), int)
        )
        state = nnx.state(self.encoder, nnx.Param)
        nnx.replace_by_pure_dict(state, params)
        nnx.update(self.encoder, state)
        self.head = nnx.Linear(config.hidden_size, 1, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.encoder(tokens)[:, 0])[:, 0]


def load(init):
    """The config and the parameters of the encoder of a run, or of a published BERT."""
    try:
        config, params = trainer.load_run(init)
    except ValueError:
        encoder = interop.load_encoder(init)
        config, params = encoder.config, encoder.params
    return config, params["bert"]


def batch_of(ids, tokenizer, length, rows, rng):
    """Rows `[CLS] text [SEP]`, half of them with their tokens shuffled, and which these are."""
    starts = rng.integers(0, len(ids) - length, rows)
    text = ids[starts[:, None] + np.arange(length)]
    shuffled = np.arange(rows) % 2 == 1
    text[shuffled] = rng.permuted(text[shuffled], axis=1)
    ends = ((0, 0), (1, 0)), ((0, 0), (0, 1))
    for name, where in zip(("[CLS]", "[SEP]"), ends, strict=True):
        text = np.pad(text, where, constant_values=tokenizer.token_to_id(name))
    return text, shuffled


def loss(model, tokens, shuffled):
    logits = model(tokens)
    return optax.sigmoid_binary_cross_entropy(logits, shuffled).mean(), (
        logits > 0
    ) == shuffled


@nnx.jit
def train_step(model, optimizer, tokens, shuffled):
    (_, right), grads = nnx.value_and_grad(loss, has_aux=True)(model, tokens, shuffled)
    optimizer.update(model, grads)
    return right.mean()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--init", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--length", type=int, default=30)
    flags = parser.parse_args(arguments)

    model = Classifier(*load(flags.init), rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-4), wrt=nnx.Param)
    tokenizer = load_tokenizer(Path(flags.init) / "tokenizer.json")
    text = " ".join(open_corpus("pydoc").documents())
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    rng, right = np.random.default_rng(0), []
    for step in range(1, flags.steps + 1):
        right.append(
            train_step(
                model, optimizer, *batch_of(ids, tokenizer, flags.length, 16, rng)
            )
        )
        if step % max(flags.steps // 4, 1) == 0:
            print(f"step {step}: {100 * np.mean(right[-20:]):.0f}% right")


if __name__ == "__main__":
    main()
