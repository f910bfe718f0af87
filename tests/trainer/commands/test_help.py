"""`--help` of the commands, and where `--config` finds its file."""

import errno
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.commands import call

import pe_jax
from pe_jax.common.schema import fields_of_task, flatten
from pe_jax.trainer.configs.all_tasks import CONFIGS, EVALUATIONS
from pe_jax.trainer.console import command, terminal
from pe_jax.trainer.console.config_files import find_config, shipped

ROOT = Path(__file__).parents[3]


def test_help_needs_no_jax():
    """Told at once: nothing is imported that takes seconds."""
    code = (
        "import sys\nsys.argv = ['pe-jax', 'train', '--config=glue', '--help']\n"
        "from pe_jax.trainer.commands import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "slow = {'jax', 'flax', 'grain', 'orbax', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (
        "--workdir" in done.stdout and "optimizer.learning_rate = 2e-05" in done.stdout
    )
    assert "\npe-jax train --config=quickstart --workdir=W\n" in done.stdout


HELP = [sys.executable, ROOT / "train.py", "--config=glue", "--help"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_help_to_a_reader_that_leaves():
    """Such as `head`."""
    with subprocess.Popen(
        HELP, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as help_process:
        help_process.stdout.close()
        assert help_process.stderr.read() == b""
    assert help_process.returncode == 0


def test_help_to_a_full_disk():
    with open("/dev/full", "w") as full:
        done = subprocess.run(HELP, stdout=full, stderr=subprocess.PIPE, text=True)
    line = "error: standard output was not written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (1, line)


# A command in a terminal, which is closed when the file `ready` is there.
IN_A_TERMINAL = """
import fcntl, pathlib, signal, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from absl import flags
from pe_jax.trainer.console import command, terminal

def run():
    progress = terminal.Progress(10)
    terminal.log("a message")
    pathlib.Path("ready").touch()
    while not pathlib.Path("closed").exists():
        time.sleep(0.02)
    for _ in range(10):
        progress.advance()
        time.sleep(0.05)
        if len(sys.orig_argv) > 3:
            terminal.log("another message")
    progress.close()
    terminal.show("results")
    pathlib.Path("done").touch()

sys.argv = ["command"]
command.main(run, flags.FlagValues(), "usage")
"""


@pytest.mark.parametrize("messages", [[], ["messages"]])
def test_a_terminal_that_is_closed(tmp_path, messages):
    """The command goes on, and exits with 0, whether a bar or a message is written next."""
    master, slave = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *messages],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        os.close(slave)
        until = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.close(master)
        (tmp_path / "closed").touch()
        assert process.wait(60) == 0
    assert (tmp_path / "done").exists()


def test_a_broken_device_is_an_error(monkeypatch, tmp_path, capsys):
    """EIO of a file is no terminal that was closed."""

    def fail(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with (tmp_path / "file").open("w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        patch.setattr("builtins.print", fail)
        with pytest.raises(SystemExit, match="not written: Input/output error"):
            terminal.show("results")


def test_control_characters_do_not_reach_a_terminal(capsys):
    """Such as those of a name: they could retitle it, clear it, or write what nobody has said."""
    name = "run\x1b[2J\x1b]0;title\x07\x9b1m\r"
    terminal.show(f"Written to {name}\tand\nmore")
    terminal.log(f"Run {name}")
    out, err = capsys.readouterr()
    escaped = r"run\x1b[2J\x1b]0;title\x07\x9b1m\r"
    assert out == f"Written to {escaped}\tand\nmore\n"
    assert err == f"Run {escaped}\n"
    assert command._error(f"--workdir={name}") == f"error: --workdir={escaped}"


def test_help_without_utf_8():
    done = subprocess.run(
        HELP, capture_output=True, text=True, env={**os.environ, **ASCII}
    )
    assert (done.returncode, done.stderr) == (0, "") and "optimizer.b2" in done.stdout


def test_streams_that_are_closed():
    """No other file takes the place of standard error."""
    code = (
        "import sys\nfrom pe_jax.trainer.console import terminal\nterminal.prepare_streams()\n"
        "assert open(sys.executable).fileno() > 2\nterminal.log('nobody reads this')\n"
        "print('done', file=sys.stderr)\n"
    )
    command = f'exec "{sys.executable}" -c "{code}" 0<&- 1>&- 2>&-'
    assert subprocess.run(["sh", "-c", command], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_help_lists_flags_and_configs(script):
    status, out, _ = call(script, "--help")
    assert status == 0
    assert all(len(line) <= 100 for line in out.splitlines())
    assert "  --workdir  " in out
    assert ("\n  squad  " in out) == (script == "train.py")
    assert ("\n  sweep  " in out) == (script == "eval.py")


def test_help_has_each_key_with_its_value_and_description(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from pe_jax.trainer.configs.pretraining import PretrainingConfig\n"
        "from pe_jax.common.schema import config_dict\n\n\n"
        "def get_config():\n"
        "    config = config_dict(PretrainingConfig)\n"
        "    config.seed = 3\n"
        "    config.model.size = 'mini'\n"
        "    return config\n"
    )
    status, out, _ = call("train.py", f"--config={file}", "--help")
    assert status == 0 and "\n  seed = 3                      Initial parameters" in out
    assert (
        "\n  model.size = 'mini'           The model has the sizes of this name: tiny, "
        in out
    )
    assert (
        "\n  stage2.epochs = 0.0           The stage passes over the text this " in out
    )


@pytest.mark.parametrize("name", shipped())
def test_every_key_has_help(name):
    """`--help` prints the whole description of each key."""
    values = runpy.run_path(str(shipped()[name]))["get_config"]().to_dict()
    fields = fields_of_task(values["task"], CONFIGS)
    script = "eval.py" if values["task"] in EVALUATIONS else "train.py"
    _, out, _ = call(script, f"--config={name}", "--help")
    shown = " ".join(out.split())
    for key in flatten(values):
        description = fields[key].metadata["description"]
        assert description and " ".join(description.split()) in shown, key


# What the first sentence of a key's help has: a finite verb, of those in use.
VERBS = re.compile(
    r"\b(adds?|are|computes?|decays?|decides?|depends?|drops|ends|falls|gives|has|have"
    r"|imitates|is|keeps|passes|reads?|recomputes|rises|runs|sets|show|shrinks|starts?|trains"
    r"|updates|use)\b"
)
FRAGMENT = re.compile(
    r"(Also|As|By|For|From|How|If|Instead|Not|Of|On|Or|Steps;|To|What|Where|Whether|Which|With)\b"
)


def is_sentence(description):
    first = re.split(r"[.;] ", description)[0]
    whole = description[0].isupper() and description.endswith(".")
    verb = VERBS.search(first) and not FRAGMENT.match(first)
    return bool(whole and verb and len(first.split()) >= 4)


def test_help_of_keys_is_whole_sentences():
    fragments = {}
    for task in CONFIGS:
        for key, field in fields_of_task(task, CONFIGS).items():
            if "kind" in field.metadata and not field.metadata["internal"]:
                description = field.metadata["description"]
                if not is_sentence(description):
                    fragments[key] = description
    assert not fragments, "write sentences, and add a new verb to VERBS"


@pytest.mark.parametrize(
    "fragment",
    [
        "Of weights: 0.1; ModernBERT 0.",
        "Instead of steps.",
        "Or a path or glob of .txt / .jsonl (.gz, .xz); tfds:NAME:SPLIT.",
        "Not of biases, norms and frequencies.",
        "Steps; 0 scores at the end only.",
        "Dimension of hidden states.",
        "tiny, mini, small, medium, base (default), large, or a ModernBERT.",
    ],
)
def test_fragments_are_found(fragment):
    assert not is_sentence(fragment)


def test_where_configs_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = str(shipped()["glue"])
    assert find_config("glue") == find_config("configs/glue.py") == own
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "glue.py").touch()
    assert find_config("configs/glue.py") == "configs/glue.py"
    for name in ("gleu", "configs/gleu.py", "other/glue.py", "glue.py"):
        with pytest.raises(ValueError, match="there is no (file|config)"):
            find_config(name)


def test_a_file_does_not_shadow_a_shipped_config(tmp_path, monkeypatch):
    """A config is Python and runs: only a path leads to a file of the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "quickstart.py", "mine"):
        (tmp_path / name).write_text("raise SystemExit('ran')")
    assert find_config("quickstart") == str(shipped()["quickstart"])
    assert find_config("./quickstart") == "./quickstart"
    assert find_config("quickstart.py") == "quickstart.py"
    with pytest.raises(
        ValueError, match=r"no config mine\. For the file .* give \./mine\."
    ):
        find_config("mine")


def test_a_command_that_does_not_exist(monkeypatch, capsys):
    from pe_jax.trainer import commands

    monkeypatch.setattr("sys.argv", ["pe-jax", "trian"])
    message = r"^error: trian is not a command of pe-jax\. Did you mean train\?\n  pe-jax train "
    with pytest.raises(SystemExit, match=message):
        commands.main()
    monkeypatch.setattr("sys.argv", ["pe-jax"])
    commands.main()
    assert "pe-jax prepare" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["pe-jax", "--version"])
    commands.main()
    assert capsys.readouterr().out == f"{pe_jax.__version__}\n"
