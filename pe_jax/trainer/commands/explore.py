"""Write a page where encodings and trained runs are chosen and seen side by side.

pe-jax explore --runs='W/*' --out=page.html                the layers of trained runs
pe-jax explore --encodings='rope,rope(base=500),alibi' --out=page.html      untrained encodings

The page is one file, which any browser shows; both flags together put both on it.
"""

from __future__ import annotations

import dataclasses
import functools

from pe_jax.common.errors import extra

with extra("train", SystemExit):
    from absl import flags

    from pe_jax.common.files import reachable_path, write_text
    from pe_jax.trainer.console import command
    from pe_jax.trainer.console.terminal import log, show

_FLAGS = flags.FlagValues()
_string = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_RUNS = _string("runs", None, "Glob of the folders of runs.")
_ENCODINGS = _string(
    "encodings", "", "Untrained encodings; 'all', or 'paper' for its 13."
)
_OUT = _string("out", None, "The .html file to write.")

_TRAINED = (
    "Layers of trained models: mean attention logits, times √d, of random words, where every query "
    "is one word and every key another."
)
_UNTRAINED = (
    "Untrained encodings, in the sizes of BERT-base: P·Pᵀ if they add vectors to the input, else "
    "the logits of one repeated word with equal projections of queries and keys."
)


def run() -> None:
    from pe_jax.trainer.reports.explorer_page import page, plotly_source

    is_something_chosen = _RUNS.value or _ENCODINGS.value.strip(" ,")
    if not is_something_chosen or not str(_OUT.value).endswith(".html"):
        raise ValueError(
            "Give --runs='RUNS/*', --encodings=rope,alibi, or both; and --out=PAGE.html."
        )
    plotly = plotly_source()  # Before everything that takes long.
    from pe_jax.encodings.parser import expand_names
    from pe_jax.trainer.reports import explorer
    from pe_jax.trainer.reports.property_report.subjects import from_run
    from pe_jax.trainer.training.workdir import matching_runs

    names = expand_names(_ENCODINGS.value)
    for name in names:  # A mistake in the last one is reported at once.
        explorer.base_size(name)
    entries = []
    folders = matching_runs(_RUNS.value) if _RUNS.value else []
    folder_names = [folder.name for folder in folders]
    for folder in folders:
        log(f"Measuring {folder}")
        subject = from_run(folder)
        if folder_names.count(folder.name) > 1:
            subject = dataclasses.replace(subject, name=str(folder))
        entries += explorer.layers_of_run(subject)
    for name in names:
        log(f"Measuring {name}")
        entries.append(explorer.untrained(name, f"{name} (untrained)"))
    about = []
    if folders:
        about.append(_TRAINED)
    if names:
        about.append(_UNTRAINED)
    out = reachable_path(_OUT.value)
    text = page(
        entries,
        title="Position encodings side by side",
        about=" ".join(about),
        plotly=plotly,
    )
    write_text(out, text)
    show(f"Wrote {out}. Open it in a browser.")


def main() -> None:
    command.main(run, _FLAGS, __doc__ or "")


if __name__ == "__main__":
    main()
