"""What pe_jax reads is data: SECURITY.md."""

import ast
from pathlib import Path

import pe_jax

UNPICKLE = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
}
# Modules that run code or programs, and the only file that may: its flag names a function to call.
RUN = {"runpy": "trainer/commands/golden.py", "subprocess": "", "code": "", "pty": ""}
CALLS = (
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "torch.load",
    "pd.eval",
)


def findings(file, source):
    """Lines of a module that could run what a file says."""
    for node in ast.walk(ast.parse(source)):
        imported = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        for name in imported:
            package = name.partition(".")[0]
            if package in UNPICKLE or RUN.get(package, file) != file:
                yield f"{file}:{node.lineno} imports {name}"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = [ast.unparse(keyword) for keyword in node.keywords]
            unsafe = name == "np.load" and "allow_pickle=False" not in options
            if name in CALLS or unsafe or "trust_remote_code=True" in options:
                yield f"{file}:{node.lineno} calls {name}"


def test_no_file_is_unpickled_or_evaluated():
    package = Path(pe_jax.__file__).parent
    files = {
        str(path.relative_to(package)): path.read_text("utf-8")
        for path in package.rglob("*.py")
    }
    assert len(files) > 100
    assert not [
        line for file, source in files.items() for line in findings(file, source)
    ]


def test_what_the_check_finds():
    bad = (
        "import pickle\nfrom subprocess import "
        "run\nnp.load(f)\neval(x)\nfrom runpy import run_path"
    )
    assert len(list(findings("data/a.py", bad))) == 5
    good = "np.load(f, allow_pickle=False)\nast.literal_eval(x)\nimport runpy"
    assert not list(findings("trainer/commands/golden.py", good))
