"""Write docs/huggingface.md: what `from_hf` gives for every model type of transformers, and the
published encoders that `load_encoder` reads.

    pip install '.[parity]'
    python tools/write_hf_table.py

Model types come from the installed transformers: those of all folders whose code mentions rotary,
relative or bias positions, with the default config of each.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from catalogue import published

from pe_jax.interop import from_hf
from pe_jax.interop.hf_registry import FAMILIES, REFUSED, WITHOUT

PAGE = Path(__file__).resolve().parent.parent / "docs/huggingface.md"
MENTIONS = re.compile(
    r"rotary|(?<![a-zA-Z])rope(?![a-z])|_rope|Rope[A-Z]|RoPE|alibi|position_bias|rel(ative)?_pos"
    r"|relpos|relative_key|relative_logits|relative_attention|rel_attn"
    r"|Rel(ative)?(Pos|Logits|Attention)"
)
NOT_CODE = re.compile(r'""".*?"""|#[^\n]*', re.DOTALL)
INTRODUCTION = """# Hugging Face's model types

`interop.from_hf` turns the config of a model of transformers into its position encoding:

```python
from pe_jax import interop

interop.from_hf({{"model_type": "gpt_neox"}}).name  # 'rope(fraction=0.25)'
```

The [table of all types](#all-model-types) covers the {total} model types of transformers
{version} whose source mentions rotary, relative or bias positions. To load a model with its
weights, read the [next section](#load-a-published-encoder).

| result | types | meaning |
|---|---|---|
| read | {read} | the encoding of the type's default config |
| invalid default | {invalid} | the default config is invalid: keys are missing or contradict each \
other, and the table has the error. Configs of published models are read |
| part | {part} | a config of several models; `part` chooses one |
| refused | {refused} | `from_hf` raises an error with the reason in the table |
| without | {without} | no rotary, relative or bias positions |

- In a decoder `window(max_distance=1023)` is a window of 1,024 tokens, the query's own included:
  a query attends to keys at most 1,023 tokens away.
- `cycle(a, b)` alternates over the layers, and `per_layer(a, b)` too, with parameters for each
  layer. [Position encodings by name](encodings.md) explains the other names.
- Of a config of several models the text model is read. Others, such as a `vision_config`, need
  `part=`: see [configs of several models](from-hf.md#configs-of-several-models).
- `from_hf` reads positions alone. It ignores tokens that are selected by their content, and sinks,
  gates and scales that are the same at all positions.

"""
PUBLISHED = """## Load a published encoder

`interop.load_encoder` reads the weights of these types, from a folder or by the name of a model of
the Hub:

```
from pe_jax import interop

encoder = interop.load_encoder("sentence-transformers/all-mpnet-base-v2")
```

[Sentence embeddings](embeddings.md) shows how to encode texts with it, and how to give it other
positions. [Modern encoders](modern.md#load) and its
[details by family](modern-details.md#notes-by-family) say which parts are read. The heads are:

{heads}

- *next sentence*: of `albert` the order of sentences.
- *exported*: `interop.save_encoder` can write it.
- *published weights tried*: these two models only. All others were compared with transformers,
  or with their formulas in float64, with
  [random weights](modern-details.md#the-same-numbers-as-transformers).

If the type is in transformers 5, this command compares the published weights of a model with
transformers on your machine, and prints the largest differences:

```sh
python -m pe_jax.interop.check FOLDER
```

## Published encoders

The encodings that `load_encoder` gives to well-known models, by their names on the Hub. For {texts}
of the {total}, tests read the text of config.json in `tests/published`. For the others they read
the defaults of the class in transformers and a few known keys, which are in
`tools/catalogue/published.toml`. A model whose weights are only in a pickle (`pytorch_model.bin`)
is not opened; the error has the command that converts it.

{encodings}

"""
ALL_TYPES = """## All model types

"""


def model_types() -> dict[str, Any]:
    """Classes of configs by model type, of all folders whose code mentions such positions."""
    import transformers

    found: dict[str, Any] = {}
    for folder in sorted(
        Path(transformers.__file__).parent.joinpath("models").iterdir()
    ):
        texts = [
            file.read_text(encoding="utf-8") for file in folder.glob("modeling_*.py")
        ]
        if not any(MENTIONS.search(NOT_CODE.sub("", text)) for text in texts):
            continue
        for file in sorted(folder.glob("configuration_*.py")):
            module = importlib.import_module(
                f"transformers.models.{folder.name}.{file.stem}"
            )
            for kind in vars(module).values():
                own = inspect.isclass(kind) and kind.__module__ == module.__name__
                if (
                    own
                    and issubclass(kind, transformers.PreTrainedConfig)
                    and kind.model_type
                ):
                    found.setdefault(kind.model_type, kind)
    return found


def outcome(model_type: str, kind: Any) -> tuple[str, str]:
    """Return the result, one of those of the page or `unknown`, and the encoding or the reason."""
    try:
        return "read", f"`{from_hf(kind().to_dict()).name}`"
    except ValueError as error:
        message = str(error)
    if "has no rotary, relative or bias" in message:
        return "without", "no such positions"
    if refusal := re.search(r"is not supported: (.*)\.$", message):
        return "refused", refusal[1]
    if "pass part=" in message:
        return "part", message.partition("models: ")[2].rstrip(".")
    return ("unknown" if "is not known" in message else "invalid default"), message


def published_sections() -> str:
    """Return the sections on published encoders, which need no transformers."""
    texts = sum(bool(encoder.config) for encoder in published.PUBLISHED)
    return PUBLISHED.format(
        heads="\n".join(published.heads_table()),
        texts=texts,
        total=len(published.PUBLISHED),
        encodings="\n".join(published.encodings_table()),
    )


def page() -> str:
    import transformers

    transformers.logging.set_verbosity_error()
    outcomes = {
        name: outcome(name, kind) for name, kind in sorted(model_types().items())
    }
    count = lambda kind: sum(found == kind for found, _ in outcomes.values())
    introduction = INTRODUCTION.format(
        total=len(outcomes), version=transformers.__version__, read=count("read"),
        invalid=count("invalid default"), part=count("part"), refused=count("refused"),
        without=count("without"),
    )  # fmt: skip
    rows = [
        f"| `{name}` | {kind} | {text} |" for name, (kind, text) in outcomes.items()
    ]
    others = sorted(
        {*FAMILIES, *REFUSED, *WITHOUT} - {*outcomes} - {n[:-5] for n in outcomes}
    )
    names = ", ".join(f"`{name}`" for name in others)
    return (
        introduction
        + published_sections()
        + ALL_TYPES
        + "\n".join(
            [
                "| model type | result | encoding, or why there is none |",
                "|---|---|---|",
                *rows,
            ]
        )
        + "\n\n`from_hf` also knows these types, which are in other folders or have another name "
        + f"in transformers: {names}.\n\n`python tools/write_hf_table.py` writes this page.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
