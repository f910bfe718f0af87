"""Lines of progress and of scalars."""

import types

from pe_jax.trainer.console import terminal


def test_lines_of_progress_keep_their_distance(monkeypatch, capsys):
    clock = iter(
        range(0, 100, 4)
    )  # Seconds: at the start, then at every tenth of the total.
    monkeypatch.setattr(
        terminal, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
    )
    progress = terminal.Progress(10, unit="batch", lines=10.0)
    for _ in range(10):
        progress.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{n} of 10 batches, {4 * n:.1f} s" for n in (3, 6, 9)]


def test_lines_of_scalars_fit_a_terminal(capsys):
    scalars = {"masked_lm_accuracy": 0.123456, "masked_lm_loss": 4.56789, "mfu": 0.25}
    progress = terminal.Progress(100)
    progress.report(7, "training", scalars)
    progress.report(
        8, "training", {f"{name}_{i}": 1234.5 for i in range(4) for name in scalars}
    )
    first, *more = capsys.readouterr().err.splitlines()
    assert first == "step   7/100  training  MLM acc 0.123  MLM loss 4.568  mfu 0.250"
    assert len(more) > 1 and all(len(line) <= 100 for line in more)
