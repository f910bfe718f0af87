"""Measures, compares and exports: runs, untrained encodings, published checkpoints, sweeps, tables.

eval.py --workdir=RUN | --runs='RUNS/*'                      held-out scores, a table of runs
eval.py --config=configs/properties.py --workdir=RUN --out=R    (see that file for more)
eval.py --config=configs/sweep.py --out=R
eval.py --config=configs/lengths.py --workdir=RUN      a fine-tuned run on longer inputs
eval.py --config=configs/tables.py --runs='RUNS/*' --out=R      the paper's tables 2 and 3
eval.py --config=configs/export.py --workdir=RUN --out=R      for PyTorch, ONNX, or JAX alone
"""

from __future__ import annotations

import functools
from pathlib import Path

from pe_jax.common.errors import extra

with extra("train", SystemExit):
    from absl import flags

    from pe_jax.common.files import reachable_path, to_path
    from pe_jax.common.markdown import for_terminal
    from pe_jax.common.schema import Config, from_values
    from pe_jax.trainer.configs.all_tasks import EVALUATIONS, TRAINING
    from pe_jax.trainer.configs.distill_positions import DistillationConfig
    from pe_jax.trainer.configs.export import ExportConfig
    from pe_jax.trainer.configs.finetuning import FinetuningConfig
    from pe_jax.trainer.configs.lengths import LengthsConfig
    from pe_jax.trainer.configs.properties import PropertiesConfig
    from pe_jax.trainer.configs.sweep import SweepConfig
    from pe_jax.trainer.configs.tables import TablesConfig
    from pe_jax.trainer.console import command
    from pe_jax.trainer.console.config_files import define_config
    from pe_jax.trainer.console.terminal import show

# All else is imported where it is used: help, and mistakes in flags, are told at once.

_FLAGS = flags.FlagValues()
_CONFIG = define_config(
    _FLAGS, "What to measure: a config, by name or as a file; default: scores."
)
_string = functools.partial(flags.DEFINE_string, flag_values=_FLAGS)
_WORKDIR = _string("workdir", None, "Folder of a run.")
_RUNS = _string("runs", None, "Glob of the folders of runs.")
_ENCODINGS = _string(
    "encodings", "", "Encodings to measure untrained; 'all', or 'paper' for its 13."
)
_CHECKPOINTS = flags.DEFINE_list(
    "checkpoints",
    [],
    "Published models: folders or .safetensors files, each PATH or NAME=PATH.",
    flag_values=_FLAGS,
)
_OUT = _string(
    "out", None, "Folder for the results; default: a folder inside the run's."
)


def _out(default: str) -> Path:
    """Return --out, or a folder in that of the run."""
    if _OUT.value:
        return reachable_path(_OUT.value)
    return _run_folder("a run") / default


def _run_folder(what: str) -> Path:
    if not _WORKDIR.value:
        raise ValueError(
            f"--workdir is required: the folder of {what}. --out names the folder for results."
        )
    return reachable_path(_WORKDIR.value)


def _run_folders() -> list[Path]:
    from pe_jax.trainer.training.workdir import matching_runs

    folders = []
    if _WORKDIR.value:
        folders.append(reachable_path(_WORKDIR.value))
    if _RUNS.value:
        folders += matching_runs(_RUNS.value)
    return folders


def _report_scores() -> tuple[str, Path]:
    from pe_jax.trainer.reports.comparison import compare
    from pe_jax.trainer.reports.distillation_report import report_distillation
    from pe_jax.trainer.reports.pretraining_report import report_pretraining
    from pe_jax.trainer.reports.rescoring import rescore
    from pe_jax.trainer.training.workdir import load_config

    if bool(_WORKDIR.value) == bool(_RUNS.value):
        raise ValueError(
            "Give --workdir=RUN to report on it, or --runs='RUNS/*' to compare."
        )
    out = _out("report")
    folders = _run_folders()
    if _RUNS.value:
        return compare(folders, out), out
    config: Config = load_config(folders[0], TRAINING).config
    if isinstance(config, FinetuningConfig):
        return rescore(folders[0], out), out
    if isinstance(config, DistillationConfig):
        return report_distillation(folders[0], out), out
    return report_pretraining(folders[0], out), out


def _measure_properties(config: PropertiesConfig, out: Path) -> str:
    from pe_jax.encodings.parser import expand_names
    from pe_jax.trainer.reports.property_report import subjects
    from pe_jax.trainer.reports.property_report.report import measure_properties

    names = expand_names(_ENCODINGS.value)
    for name in names:  # A mistake in the last one is no reason to wait for all others.
        subjects.fresh_model(name, config)
    measured = [subjects.from_run(folder) for folder in _run_folders()]
    measured += [subjects.from_name(name, config, config.seed) for name in names]
    for checkpoint in _CHECKPOINTS.value:
        name, _, path = checkpoint.rpartition("=")
        measured.append(subjects.from_checkpoint(to_path(path), config.family, name))
    return measure_properties(measured, config, out)


def _evaluate(config: Config, out: Path) -> str:
    match config:
        case ExportConfig():
            from pe_jax.trainer.reports.run_export import export

            run = _run_folder("the run to export")
            return export(run, out, config.seed, config.format, config.dtype)
        case LengthsConfig():
            from pe_jax.trainer.reports.rescoring import rescore

            return rescore(
                _run_folder("a fine-tuned run"), out, config.lengths, config.resize
            )
        case PropertiesConfig():
            return _measure_properties(config, out)
        case SweepConfig():
            from pe_jax.trainer.reports.sinusoid_sweep import sweep_sinusoids

            return sweep_sinusoids(config, out)
        case TablesConfig():
            from pe_jax.trainer.reports.paper_tables import write_tables

            return write_tables(_run_folders(), config, out)
    raise NotImplementedError(f"There is no evaluation for {type(config).__name__}.")


def evaluate() -> None:
    values = _CONFIG.value
    if values is None:
        page, out = _report_scores()
        text = for_terminal(page)
    else:
        config: Config = from_values(
            values, EVALUATIONS, " For the scores of a run give no --config."
        )
        out = _out(values.task)
        text = _evaluate(config, out)
        if not isinstance(config, ExportConfig):  # Whose text is not Markdown.
            text = for_terminal(text)
    show(f"{text}\nWritten to {out}")


def main() -> None:
    command.main(evaluate, _FLAGS, __doc__ or "", "eval.py")
