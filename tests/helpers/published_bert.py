"""A small published BERT: random weights under their published names, and its outputs."""

import json

import numpy as np
from safetensors.numpy import save_file
from scipy.special import erf

V, N, S, D, M, H, LAYERS = 13, 10, 2, 12, 20, 3, 2
BERT = {
    "model_type": "bert",
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
    "intermediate_size": M,
    "max_position_embeddings": N,
    "type_vocab_size": S,
    "layer_norm_eps": 1e-5,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "initializer_range": 0.04,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", "##a", "##b", "##c"]
TABLE = "embeddings.position_embeddings.weight"


def encoder_shapes(vocab=V, layers=LAYERS):
    shapes = {
        "embeddings.word_embeddings.weight": (vocab, D),
        TABLE: (N, D),
        "embeddings.token_type_embeddings.weight": (S, D),
        **norm("embeddings"),
    }
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            shapes |= dense(f"{layer}.attention.self.{name}", D, D)
        shapes |= dense(f"{layer}.attention.output.dense", D, D)
        shapes |= dense(f"{layer}.intermediate.dense", M, D)
        shapes |= dense(f"{layer}.output.dense", D, M)
        shapes |= norm(f"{layer}.attention.output") | norm(f"{layer}.output")
    return shapes


def head_shapes(vocab=V):
    return {
        **dense("pooler.dense", D, D),
        **dense("cls.predictions.transform.dense", D, D),
        **norm("cls.predictions.transform"),
        "cls.predictions.bias": (vocab,),
        **dense("cls.seq_relationship", 2, D),
    }


def dense(name, out, into):
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name):
    return {f"{name}.LayerNorm.weight": (D,), f"{name}.LayerNorm.bias": (D,)}


def random_tensors(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in shapes.items()}


def bert_tensors(seed=0):
    """The encoder alone, with position ids as in old files."""
    return {
        **random_tensors(encoder_shapes(), seed),
        "embeddings.position_ids": np.arange(N)[None],
    }


def whole_tensors(seed=0):
    """The encoder and both pretraining heads, under the names of `BertForPreTraining`."""
    whole = random_tensors(encoder_shapes() | head_shapes(), seed)
    return {
        n if n.startswith("cls.") else f"bert.{n}": tensor
        for n, tensor in whole.items()
    }


def write(folder, tensors, config=None, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / file)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def numpy_bert(t, config, tokens, token_type_ids, valid):
    """The input of the first layer and the output of each, in float64, from the published tensors;
    one head at a time."""
    t = {
        name.removeprefix("bert."): np.asarray(value, np.float64)
        for name, value in t.items()
    }
    x = t["embeddings.word_embeddings.weight"][tokens]
    x = x + t["embeddings.token_type_embeddings.weight"][token_type_ids]
    x = _norm(t, config, x + t[TABLE][: tokens.shape[1]], "embeddings.LayerNorm")
    size = config["hidden_size"] // config["num_attention_heads"]
    states = [x]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            _dense(t, x, f"{layer}.attention.self.{n}")
            for n in ("query", "key", "value")
        )
        mixed = []
        for h in range(config["num_attention_heads"]):
            own = slice(h * size, (h + 1) * size)
            scores = q[..., own] @ k[..., own].swapaxes(1, 2) / np.sqrt(size)
            weights = np.exp(scores - scores.max(-1, keepdims=True)) * valid[:, None, :]
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[..., own])
        y = _dense(t, np.concatenate(mixed, -1), f"{layer}.attention.output.dense")
        x = _norm(t, config, x + y, f"{layer}.attention.output.LayerNorm")
        y = _dense(
            t,
            _gelu(_dense(t, x, f"{layer}.intermediate.dense")),
            f"{layer}.output.dense",
        )
        x = _norm(t, config, x + y, f"{layer}.output.LayerNorm")
        states.append(x)
    return np.stack(states)


def numpy_heads(t, config, hidden):
    """Masked-LM logits of every position, and next-sentence logits, of the last hidden states."""
    t = {
        name.removeprefix("bert."): np.asarray(value, np.float64)
        for name, value in t.items()
    }
    x = _gelu(_dense(t, hidden, "cls.predictions.transform.dense"))
    x = _norm(t, config, x, "cls.predictions.transform.LayerNorm")
    masked_lm = x @ t["embeddings.word_embeddings.weight"].T + t["cls.predictions.bias"]
    pooled = np.tanh(_dense(t, hidden[:, 0], "pooler.dense"))
    return masked_lm, _dense(t, pooled, "cls.seq_relationship")


def _dense(t, x, name):
    return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]


def _norm(t, config, x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
    return x * t[f"{name}.weight"] + t[f"{name}.bias"]


def _gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2
