"""Tables 2 and 3 of made-up runs, against numbers computed by hand, and the paper's."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.commands import call, run
from scipy import special, stats

from pe_jax.common.markdown import for_terminal
from pe_jax.encodings.parser import PAPER
from pe_jax.trainer.configs.tables import TablesConfig
from pe_jax.trainer.reports.finetuning_results import GLUE, pool, read
from pe_jax.trainer.reports.paper_tables import (
    mean_over_tasks,
    summarize,
    welch,
    write_tables,
)

METRICS = {name: metric for name, (_, metric) in GLUE.items()}


@pytest.fixture
def config():
    return TablesConfig()


def write(
    folder, name, position, dataset, scores, *, seeds=None, settings=(), **changes
):
    """The files of a finished run; `scores`: a list for GLUE's metric, or metric -> list."""
    if not isinstance(scores, dict):
        scores = {METRICS[dataset]: scores, "loss": scores}
    seeds = list(range(len(next(iter(scores.values()))))) if seeds is None else seeds
    results = {
        "dataset": dataset,
        "trained_on": dataset,
        "position": position,
        "init": f"runs/{position}",
        "select": "last",
        "seeds": seeds,
        "steps": [100] * len(seeds),
        "scores": scores,
        "baseline": {name: 0.0 for name in scores},
        **changes,
    }
    values = {
        "task": "finetuning",
        "seeds": seeds,
        "init": results["init"],
        "model": {"position": position},
        "optimizer": {"learning_rate": 2e-5},
        "eval_every": 100,
        **dict(settings),
    }
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(values))
    (path / "results.json").write_text(json.dumps(results))
    return path


def spans(f1, exact=None):
    return {"f1": f1, "exact": f1 if exact is None else exact}


def numbers(out):
    """The JSON, which must be without NaN and infinities."""
    refuse = lambda name: pytest.fail(f"{name} in the JSON")
    return json.loads((out / "tables.json").read_text(), parse_constant=refuse)


def row_of(text, position):
    """The cells of a row of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {position} ")]
    assert len(lines) == 1
    return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]


def test_mean_and_spread():
    found = summarize((0, 1, 2, 3), (1.0, 2.0, 3.0, 6.0))
    assert found["mean"] == 3.0
    assert found["std"] == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert summarize((0,), (5.0,))["std"] is None
    assert summarize((0, 1, 2), (56.3, 56.3, 56.3))["std"] == 0


def test_welch_by_hand():
    """Means 4 and 8; variances of the means 1/3 and 4: t = 4/sqrt(13/3), by its own formula."""
    found = welch([7.0, 8.0, 9.0, 4.0, 12.0], [3.0, 4.0, 5.0])
    v, w = 34 / 4 / 5, 1 / 3
    df = (v + w) ** 2 / (v**2 / 4 + w**2 / 2)
    assert found["difference"] == 4
    assert found["t"] == pytest.approx(4 / math.sqrt(v + w))
    assert found["df"] == pytest.approx(df)
    # Both tails of Student's t, as an incomplete beta function.
    assert found["p"] == pytest.approx(
        special.betainc(df / 2, 0.5, df / (df + found["t"] ** 2))
    )
    peer = stats.ttest_ind([7, 8, 9, 4, 12], [3, 4, 5], equal_var=False)
    assert (found["t"], found["df"], found["p"]) == pytest.approx(
        (peer.statistic, peer.df, peer.pvalue)
    )
    half = special.stdtrit(df, 0.975) * math.sqrt(v + w)
    assert found["interval"] == pytest.approx((4 - half, 4 + half))


@pytest.mark.parametrize("score", [56.3, 60.0])
def test_welch_without_spread(score):
    """No number but the difference, whether the means differ or not."""
    found = welch([score] * 3, [56.3] * 3)
    assert found["difference"] == pytest.approx(score - 56.3)
    assert [*found.values()][1:] == [None] * 4
    assert welch([score], [56.3, 57.0]) is None
    assert welch([score] * 2, [1.0, 2.0])["p"] < 0.05  # One side's is enough.


def test_the_spread_of_a_mean_is_over_seeds():
    tasks = [summarize((0, 1), (10.0, 20.0)), summarize((0, 1), (40.0, 34.0))]
    mean = mean_over_tasks(tasks)
    assert mean["scores"] == [25.0, 27.0]
    assert mean["std"] == pytest.approx(math.sqrt(2))
    assert mean_over_tasks([*tasks, None]) is None
    assert mean_over_tasks([*tasks, summarize((0, 2), (1.0, 2.0))]) is None


def test_table_2(tmp_path, config):
    """All nine tasks for two encodings, four for a third: rows, columns, means, marks."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for i, dataset in enumerate(reversed(GLUE)):
        base = 50.0 + i
        write(runs, f"b{i}", "learned_absolute", dataset, [base, base + 1, base + 2])
        write(
            runs, f"r{i}", "learned_relative", dataset, [base + 9, base + 10, base + 11]
        )
    for dataset in ("glue/cola", "glue/sst2", "glue/mrpc", "glue/rte"):
        write(runs, f"n_{dataset[5:]}", "none", dataset, [1.0, 2.0, 3.0])
    write(runs, "z", "none+zeta", "glue/cola", [-0.04])
    (runs / "going_on").mkdir()
    (runs / "going_on" / "config.json").write_text("{}")
    text = write_tables(sorted(runs.iterdir()), config, tmp_path / "out")

    header = [c.strip() for c in text.splitlines()[2].strip("|").split("|")]
    assert [name.split()[0] for name in header[1:10]] == (
        ["CoLA", "SST-2", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "STS-B", "WNLI"]
    )
    # The row with CoLA only leaves no two tasks that all rows have.
    assert header[10:] == ["mean of 8"]
    rows = [
        line.split("|")[1].strip()
        for line in text.splitlines()
        if line.startswith("| ")
    ][1:]
    assert rows == ["none", "learned_absolute", "learned_relative", "none+zeta"]
    # WNLI, first from below, has 50; the eight others 51 to 58, and their seeds one more each.
    absolute = row_of(text, "learned_absolute")
    assert absolute == [*(f"{x}.0 ± 1.0" for x in (59, 58, 57, 56, 55, 54, 53, 52, 51)),
                        "55.5 ± 1.0"]  # fmt: skip
    assert row_of(text, "learned_relative")[0] == "**68.0**† ± 1.0"
    assert row_of(text, "learned_relative")[-1] == "**64.5**† ± 1.0"
    assert row_of(text, "none")[:3] == ["2.0‡ ± 1.0", "2.0‡ ± 1.0", "–"]
    assert row_of(text, "none")[-1] == "–"
    assert row_of(text, "none+zeta")[:2] == ["0.0 (n=1)", "–"]
    assert "over 3 seeds where no n is given" in text
    assert f"Not finished, left out (no results.json): {runs / 'going_on'}" in text
    # Nine tasks and a mean, of one row; four tasks of another.
    assert "not corrected for the number of comparisons (14)" in text

    found = numbers(tmp_path / "out")
    assert found["unfinished"] == [str(runs / "going_on")]
    mean = found["glue"]["rows"]["learned_absolute"]["mean of 8"]
    assert (mean["mean"], mean["n"]) == (pytest.approx(55.5), 3)
    assert mean["scores"] == pytest.approx([54.5, 55.5, 56.5])
    cell = found["glue"]["rows"]["learned_relative"]["glue/rte accuracy"]
    assert cell["test"]["difference"] == pytest.approx(9)
    assert cell["test"]["df"] == pytest.approx(4)
    assert not (tmp_path / "out" / "squad.md").exists()
    assert (tmp_path / "out" / "glue.md").read_text() in text


def test_the_mean_of_the_tasks_that_all_rows_have(tmp_path, config):
    for dataset, first in (
        ("glue/rte", 60.0),
        ("glue/cola", 40.0),
        ("glue/wnli", 10.0),
    ):
        write(tmp_path, f"a{first}", "none", dataset, [first, first + 4])
    write(tmp_path, "b", "learned_relative", "glue/rte", [70.0, 72.0])
    write(tmp_path, "c", "learned_relative", "glue/cola", [50.0, 50.0])
    write(tmp_path, "d", "learned_relative", "glue/sst2", [90.0, 91.0])
    config = replace(config, all_rows=True)
    text = write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    # No mean of eight where no run has all eight.
    assert "mean of 2 (cola, rte)" in text and "mean of 8" not in text
    assert row_of(text, "none")[-1] == "52.0 ± 2.8"
    assert row_of(text, "learned_relative")[-1] == "**60.5** ± 0.7"
    assert set(row_of(text, "sinusoidal_absolute")) == {"–"}
    assert "there is no run of learned_absolute" in text
    assert list(numbers(tmp_path / "out")["glue"]["rows"]) == list(PAPER)


def test_rows_are_in_the_papers_order_whatever_their_options(tmp_path, config):
    positions = (
        "alibi",
        "learned_relative(max_distance=8)",
        "learned_absolute",
        "sinusoidal_absolute(scale=0.03)",
        "learned_absolute(std=0.1)+learned_relative",
    )
    for position in positions:
        write(tmp_path, position, position, "glue/rte", [60.0, 61.0])
    in_order = [positions[place] for place in (2, 3, 1, 4, 0)]
    write_tables([tmp_path / one for one in positions], config, tmp_path / "out")
    assert list(numbers(tmp_path / "out")["glue"]["rows"]) == in_order
    config = replace(config, all_rows=True)
    write_tables([tmp_path / one for one in positions], config, tmp_path / "out")
    rows = list(numbers(tmp_path / "out")["glue"]["rows"])
    assert [one for one in rows if one in positions] == in_order and len(rows) == 14


def test_ties_at_the_printed_precision_are_all_bold(tmp_path, config):
    write(tmp_path, "a", "none", "glue/rte", [60.04])
    write(tmp_path, "b", "learned_relative", "glue/rte", [59.96])
    write(tmp_path, "c", "learned_absolute", "glue/rte", [59.94])
    write(tmp_path, "d", "none", "squad/v1.1", spans([60.04]))
    write(tmp_path, "e", "learned_relative", "squad/v1.1", spans([59.96]))
    text = write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    glue, squad = text.split("# SQuAD")
    assert row_of(glue, "none")[0] == row_of(glue, "learned_relative")[0] == "**60.0**"
    assert row_of(glue, "learned_absolute")[0] == "59.9"
    assert row_of(squad, "none") == ["**60.04**", "**60.04**"]
    assert row_of(squad, "learned_relative") == ["59.96", "59.96"]
    assert (
        "one seed each" in text and "Nothing is tested: a test needs two seeds" in text
    )


def test_training_on_another_set_is_marked(tmp_path, config):
    write(
        tmp_path,
        "a",
        "none",
        "squad/v1.1",
        spans([60.0]),
        trained_on="squad_shifts:new+reddit",
    )
    write(
        tmp_path, "b", "none", "squad_shifts:new -> squad_shifts:nyt", spans([50.0], [40.0]),
        trained_on="squad_shifts:new",
    )  # fmt: skip
    write(tmp_path, "c", "none", "squad/v2.0", spans([70.0]))
    text = write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    header = [c.strip() for c in text.splitlines()[2].strip("|").split("|")]
    assert header[1:] == [
        "V2.0 F1", "V2.0 EM", r"V1.1 F1 \[a\]", r"V1.1 EM \[a\]",
        r"squad_shifts:nyt F1 \[b\]", r"squad_shifts:nyt EM \[b\]",
    ]  # fmt: skip
    assert (
        r"\[a\] Trained on squad_shifts:new+reddit: not comparable with published results."
        in text
    )
    assert r"\[b\] Trained on squad_shifts:new: not" in text
    row = numbers(tmp_path / "out")["squad"]["rows"]["none"]
    assert row["squad_shifts:new+reddit -> squad/v1.1 f1"]["mean"] == 60
    tex = (tmp_path / "out" / "squad.tex").read_text()
    assert r"squad\_shifts:nyt EM [b] \\" in tex


def test_only_columns_of_another_training_set_are_marked(tmp_path, config):
    """SQuAD v1.1 is the training set of both columns, and the set of one."""
    write(tmp_path, "a", "none", "squad/v1.1", spans([60.0]))
    write(tmp_path, "b", "none", "squad/v2.0", spans([50.0]), trained_on="squad/v1.1")
    write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    columns = numbers(tmp_path / "out")["squad"]["columns"]
    assert [*columns.values()] == ["V1.1 F1", "V1.1 EM", "V2.0 F1 [a]", "V2.0 EM [a]"]


def test_csv_reads_back(tmp_path, config):
    write(
        tmp_path,
        "a",
        "learned_absolute",
        "squad/v1.1",
        spans([80.1, 80.2, 80.4], [70.0] * 3),
    )
    write(tmp_path, "b", "none", "squad/v1.1", spans([30.0, 33.0], [20.0] * 2))
    write(tmp_path, "c", "none", "squad/v2.0", spans([50.0]))
    write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    text = (tmp_path / "out" / "squad.csv").read_text()
    none, absolute = csv.DictReader(io.StringIO(text))
    assert (none["position"], absolute["position"]) == ("none", "learned_absolute")
    assert float(absolute["squad/v1.1 f1 mean"]) == pytest.approx(
        80.7 / 3 + 53.3333333333
    )
    assert float(none["squad/v1.1 f1 std"]) == pytest.approx(math.sqrt(4.5))
    assert none["squad/v1.1 f1 n"] == "2"
    p = numbers(tmp_path / "out")["squad"]["rows"]["none"]["squad/v1.1 f1"]["test"]["p"]
    assert float(none["squad/v1.1 f1 p"]) == p
    # No test of the baseline, of one seed, or without spread; no score at all.
    assert absolute["squad/v1.1 f1 p"] == none["squad/v2.0 f1 p"] == ""
    assert none["squad/v1.1 exact p"] == ""
    assert none["squad/v2.0 f1 std"] == absolute["squad/v2.0 f1 mean"] == ""


def test_csv_has_no_formula_and_no_control_characters(tmp_path, config):
    for name, position in (("a", "learned_absolute"), ("b", "none")):
        write(tmp_path, name, position, "=HYPERLINK(x)\x1b[31m", spans([50.0, 51.0]))
    write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    header = (tmp_path / "out" / "squad.csv").read_text().splitlines()[0]
    assert "\x1b" not in header
    assert header.startswith("position,'=HYPERLINK(x)\\x1b[31m f1 mean,'=HYPERLINK")


def test_latex(tmp_path, config):
    write(tmp_path, "a", "learned_absolute", "squad/v1.1", spans([80.0, 81.0, 82.0]))
    write(
        tmp_path,
        "b",
        "none",
        "squad/v1.1",
        spans([90.0, 91.0, 92.0], [10.0, 11.0, 12.0]),
    )
    write(tmp_path, "c", "none", "squad/v2.0", spans([50.0]))
    write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    lines = (tmp_path / "out" / "squad.tex").read_text().splitlines()
    assert r"\begin{tabular}{lcccc}" in lines and r"\label{tab:squad}" in lines
    assert (
        r"none & \textbf{91.00}$^\dagger$ $\pm$ 1.00 & 11.00$^\ddagger$ $\pm$ 1.00 & "
        r"\textbf{50.00} (n=1) & \textbf{50.00} (n=1) \\"
    ) in lines
    assert lines[-4] == (
        r"learned\_absolute & 81.00 $\pm$ 1.00 & \textbf{81.00} $\pm$ 1.00 & -- & -- \\"
    )
    plain = "\n".join(lines[1:]).replace(r"\_", "").replace(r"\%", "")
    assert plain.isascii() and not set("_%#<") & set(plain.replace("$<$", ""))


def test_runs_of_other_seeds_are_joined(tmp_path, config):
    """Whatever the order of seeds, the cadence of logs and, for the last step, of scoring."""
    write(tmp_path, "a", "none", "glue/rte", [66.0, 60.0], seeds=[4, 1])
    others = {"log_every": 7, "eval_every": 5, "data": {"cache_dir": "x", "workers": 3}}
    write(tmp_path, "b", "none", "glue/rte", [63.0], seeds=[2], settings=others)
    write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    cell = numbers(tmp_path / "out")["glue"]["rows"]["none"]["glue/rte accuracy"]
    assert (cell["seeds"], cell["scores"]) == ([1, 2, 4], [60, 63, 66])
    assert (cell["mean"], cell["std"]) == (63, 3)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"seeds": [1, 2]}, "both have seeds 1"),
        (
            {"settings": {"optimizer": {"learning_rate": 3e-5}}},
            "learning_rate: 2e-05, 3e-05",
        ),
        ({"init": "runs/other"}, "init: 'runs/none', 'runs/other'"),
        ({"select": "best"}, "select: 'last', 'best'"),
        ({"settings": {"layers": 2}}, "layers: None, 2"),
    ],
    ids=["seeds", "settings", "init", "select", "key"],
)
def test_runs_that_cannot_be_joined(tmp_path, config, second, message):
    one = write(tmp_path, "a", "none", "glue/rte", [60.0, 61.0])
    other = write(
        tmp_path, "b", "none", "glue/rte", [62.0, 63.0], **{"seeds": [7, 8], **second}
    )
    with pytest.raises(ValueError) as error:
        write_tables([one, other], config, tmp_path / "out")
    assert message in str(error.value)
    assert str(one) in str(error.value) and str(other) in str(error.value)


def test_how_often_a_best_run_was_scored_matters(tmp_path):
    cadence = {"settings": {"eval_every": 5}, "select": "best"}
    write(tmp_path, "a", "none", "glue/rte", [60.0], select="best")
    write(tmp_path, "b", "none", "glue/rte", [60.0], seeds=[1], **cadence)
    with pytest.raises(ValueError, match="eval_every: 100, 5"):
        pool(map(read, sorted(tmp_path.iterdir())))


def test_rows_of_other_settings_are_warned_of(tmp_path, config):
    rate = {"settings": {"optimizer": {"learning_rate": 5e-5}}}
    for dataset in ("glue/rte", "glue/cola"):
        write(tmp_path, f"a_{dataset[5:]}", "none", dataset, [60.0, 61.0])
        write(
            tmp_path,
            f"b_{dataset[5:]}",
            "learned_relative",
            dataset,
            [60.0, 61.0],
            **rate,
        )
    write(tmp_path, "c", "none", "glue/sst2", [60.0], init="runs/elsewhere")
    text = write_tables(sorted(tmp_path.iterdir()), config, tmp_path / "out")
    warnings = [line for line in text.splitlines() if line.startswith("Warning")]
    assert warnings == [
        "Warning: rows of CoLA mcc, RTE acc differ in settings: optimizer.learning_rate is "
        "2e-05 (none); 5e-05 (learned_relative).",
        "Warning: runs of none start from different weights: runs/elsewhere, runs/none.",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": {}}, "has no score 'accuracy'; it has none"),
        (
            {"scores": {"accuracy": [1.0]}},
            "'accuracy' needs one score for each of 2 seeds, got [1.0]",
        ),
        ({"scores": {"accuracy": [1.0, math.nan]}}, "must be finite, got [1.0, nan]"),
        ({"scores": {"accuracy": [1.0, None]}}, "must be finite, got [1.0, None]"),
        ({"seeds": [1, 1]}, "distinct integers, got [1, 1]"),
        (
            {"dataset": "glue/rtee"},
            "results.json: Unknown GLUE task 'glue/rtee'; table 2 has glue/cola",
        ),
        ({"init": ...}, "lacks init; it has dataset, trained_on"),
    ],
    ids=["metric", "length", "nan", "null", "seeds", "task", "key"],
)
def test_damaged_results(tmp_path, changes, message):
    path = write(tmp_path, "a", "none", "glue/rte", [60.0, 61.0])
    results = json.loads((path / "results.json").read_text()) | changes
    kept = {key: value for key, value in results.items() if value is not ...}
    (path / "results.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError) as error:
        read(path)
    assert message in str(error.value)


def test_half_a_file(tmp_path):
    path = write(tmp_path, "a", "none", "glue/rte", [60.0])
    (path / "results.json").write_text('{"dataset": "gl')
    with pytest.raises(ValueError, match=r"results\.json is damaged"):
        read(path)


def test_a_baseline_without_a_run(tmp_path, config):
    path = write(tmp_path, "a", "none", "glue/rte", [60.0])
    config = replace(config, baseline="learnt_absolute")
    with pytest.raises(
        ValueError, match="'learnt_absolute'. Did you mean learned_absolute"
    ):
        write_tables([path], config, tmp_path / "out")


# Table 3 of the paper: mean and deviation of V1.1 F1, V1.1 EM, V2.0 F1, V2.0 EM, over five runs;
# the last column says which of the four it marks as significant.
TABLE_3 = """
36.47 0.19 24.24 0.33 50.48 0.12 49.30 0.14 ----
89.44 0.08 81.92 0.11 76.43 0.63 73.07 0.63 ----
89.45 0.07 81.93 0.11 76.12 0.48 72.75 0.55 ----
89.65 0.11 82.24 0.17 77.24 0.43 73.93 0.44 xx--
90.50 0.08 83.38 0.11 79.85 0.27 76.68 0.49 xxxx
90.30 0.07 83.24 0.08 78.76 0.29 75.38 0.28 xxxx
90.45 0.11 83.49 0.14 79.40 0.37 76.14 0.33 xxxx
90.57 0.04 83.45 0.10 80.31 0.10 76.94 0.20 xxxx
90.24 0.17 83.06 0.21 78.74 0.50 75.40 0.52 xxxx
89.56 0.28 82.26 0.30 77.82 0.42 74.51 0.39 -xxx
90.72 0.13 83.68 0.27 80.24 0.35 76.98 0.34 xxxx
90.36 0.08 83.25 0.10 78.81 0.33 75.71 0.28 xxxx
90.49 0.14 83.59 0.14 79.93 0.34 76.69 0.39 xxxx
"""


def test_the_papers_table_3(tmp_path, config):
    """Its rows, digits and bold cells; its daggers but three, where its test is not Welch's.

    Five scores of any mean and deviation: the mean plus the deviation times z, of mean 0 and
    deviation 1.
    """
    z = np.arange(-2, 3) / math.sqrt(2.5)
    five = lambda mean, std: (float(mean) + float(std) * z).tolist()
    lines = [line.split() for line in TABLE_3.split("\n") if line]
    runs = tmp_path / "runs"
    runs.mkdir()
    for i, (position, line) in enumerate(zip(PAPER, lines)):
        write(
            runs,
            f"{i}_1",
            position,
            "squad/v1.1",
            spans(five(*line[:2]), five(*line[2:4])),
        )
        write(
            runs,
            f"{i}_2",
            position,
            "squad/v2.0",
            spans(five(*line[4:6]), five(*line[6:8])),
        )
    text = write_tables(sorted(runs.iterdir()), config, tmp_path / "out")
    other, best = set(), set()
    for position, line in zip(PAPER, lines):
        for i, printed in enumerate(row_of(text, position)):
            mean, std, marked = line[2 * i], line[2 * i + 1], line[8][i] == "x"
            assert (
                printed.replace("**", "").replace("†", "").replace("‡", "")
                == f"{mean} ± {std}"
            )
            if ("†" in printed) != marked:
                other.add((position, i))
            if "**" in printed:
                best.add((position, i))
    learned = "learned_absolute+learned_relative"
    both = "learnable_sinusoidal_absolute+learned_relative"
    assert best == {(both, 0), (both, 1), (learned, 2), (both, 3)}
    # Of the first two Welch's p is 0.049 and 0.040, unmarked there; of the third 0.063, marked.
    assert other == {
        ("learnable_sinusoidal_absolute", 2),
        ("learnable_sinusoidal_absolute", 3),
        ("learned_absolute+learnable_sinusoidal_relative", 1),
    }


def test_the_command(tmp_path):
    write(tmp_path, "a", "learned_absolute", "squad/v1.1", spans([80.0, 81.0, 82.0]))
    write(tmp_path, "b", "none", "glue/rte", [60.0])
    ours = ["eval.py", "--config=configs/tables.py", f"--runs={tmp_path}/?"]
    code, out, err = run(*ours, f"--out={tmp_path / 'out'}")
    assert code == 0, err
    page = (tmp_path / "out" / "tables.md").read_text()
    assert for_terminal(page).strip() in out
    assert "# GLUE (table 2)" in page and "# SQuAD (table 3)" in page
    names = {
        f"{table}.{end}" for table in ("glue", "squad") for end in ("md", "csv", "tex")
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == (
        names | {"tables.json", "tables.md", "tables.html"}
    )
    code, _, err = call(
        ours[0], ours[1], f"--workdir={tmp_path / 'a'}"
    )  # As training ends.
    assert code == 0 and (tmp_path / "a" / "tables" / "tables.html").is_file(), err
    (tmp_path / "a" / "results.json").unlink()
    (tmp_path / "b" / "results.json").unlink()
    code, _, err = run(*ours, f"--out={tmp_path / 'out'}")
    assert (
        code != 0
        and "None of the 2 runs has finished" in err
        and "Traceback" not in err
    )
