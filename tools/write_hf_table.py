"""Write docs/huggingface.md: what `from_hf` gives for every model type of transformers.

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

For knowing what `interop.from_hf` gives for a model of transformers, or why it gives nothing.

```python
from pe_jax import interop

interop.from_hf({{"model_type": "qwen3_vl"}}).name  # 'mrope(sections=(24, 20, 20), ...)'
```

The table has the {total} model types of transformers {version} in folders whose code mentions
rotary, relative or bias positions: {read} are read, {refused} refused, {parts} ask for a `part`,
and {without} have no such positions. It is written by `tools/write_hf_table.py`.

- The encoding is that of the type's default config. Of a config of several models it is the text
  model's; others, such as a `vision_config`, are read by `part=`: see
  [names](encodings.md#from-hugging-face).
- "default config:" is the error that this config gives where it contradicts itself, as it does in
  transformers; configs of published models give an encoding.
- `from_hf` reads positions alone: not which keys an indexer chooses by content, nor sinks, gates
  and scales that are the same at all positions.

"""


def model_types() -> dict[str, Any]:
    """Classes of configs by model type, of all folders whose code mentions such positions."""
    import transformers

    found: dict[str, Any] = {}
    for folder in sorted(Path(transformers.__file__).parent.joinpath("models").iterdir()):
        texts = [file.read_text(encoding="utf-8") for file in folder.glob("modeling_*.py")]
        if not any(MENTIONS.search(NOT_CODE.sub("", text)) for text in texts):
            continue
        for file in sorted(folder.glob("configuration_*.py")):
            module = importlib.import_module(f"transformers.models.{folder.name}.{file.stem}")
            for kind in vars(module).values():
                own = inspect.isclass(kind) and kind.__module__ == module.__name__
                if own and issubclass(kind, transformers.PreTrainedConfig) and kind.model_type:
                    found.setdefault(kind.model_type, kind)
    return found


def outcome(model_type: str, kind: Any) -> tuple[str, str]:
    """`read`, `refused`, `part`, `without` or `unknown`, and the encoding or the reason."""
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
    return ("unknown" if "is not known" in message else "read"), f"default config: {message}"


def shortened(text: str) -> str:
    return f"{text[:157]}...`" if len(text) > 160 and text[0] == "`" else text


def page() -> str:
    import transformers

    transformers.logging.set_verbosity_error()
    outcomes = {name: outcome(name, kind) for name, kind in sorted(model_types().items())}
    count = lambda kind: sum(found == kind for found, _ in outcomes.values())
    introduction = INTRODUCTION.format(
        total=len(outcomes), version=transformers.__version__, read=count("read"),
        refused=count("refused"), parts=count("part"), without=count("without"),
    )  # fmt: skip
    rows = [f"| `{name}` | {kind} | {shortened(text)} |" for name, (kind, text) in outcomes.items()]
    others = sorted({*FAMILIES, *REFUSED, *WITHOUT} - {*outcomes} - {n[:-5] for n in outcomes})
    names = ", ".join(f"`{name}`" for name in others)
    return (
        introduction
        + "\n".join(["| model type | | encoding, or why there is none |", "|---|---|---|", *rows])
        + f"\n\nOutside these folders, or under names that transformers does not have: {names}.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
