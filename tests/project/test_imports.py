"""What `import pe_jax.encodings` can reach, by the import statements of the files."""

import ast
from pathlib import Path

import pytest

from pe_jax import encodings

ROOT = Path(__file__).parents[2]
ENCODINGS = ROOT / "pe_jax/encodings"


def imported_names(file):
    """Names in every import statement of a file, those in functions and for type checkers too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno} has a relative import."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_files(name):
    """The files of this project that importing a dotted name runs."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ROOT.joinpath(*parts[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                yield file


def import_closure(name):
    """The files of `pe_jax` that a module and its imports can run."""
    reached = set()
    pending = [name]
    while pending:
        for file in module_files(pending.pop()):
            if file not in reached:
                reached.add(file)
                names = imported_names(file)
                pending += [each for each in names if each.split(".")[0] == "pe_jax"]
    return reached


def test_encodings_import_no_other_package():
    """Beyond their own files, at most ten shared modules and the package itself."""
    reached = import_closure("pe_jax.encodings")
    outside = {file for file in reached if not file.is_relative_to(ENCODINGS)}
    shared = outside - {ROOT / "pe_jax/__init__.py", ROOT / "pe_jax/common/__init__.py"}
    assert {file.parent for file in shared} == {ROOT / "pe_jax/common"}, shared
    assert len(shared) <= 10, shared


def test_the_library_imports_nothing_from_the_trainer():
    """Nor does the package have more at its top than modules for users."""
    package = ROOT / "pe_jax"
    library = [file for file in package.rglob("*.py") if "trainer" not in file.parts]
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in library
        for name in imported_names(file)
        if name.startswith("pe_jax.trainer")
    }
    assert len(library) > 100 and not found
    assert len([*package.glob("*.py*")]) <= 5


def test_the_closure_follows_imports_within_functions():
    reached = import_closure("pe_jax.models.config")
    assert ENCODINGS / "rotary/rope.py" in reached  # By `encoding()` alone.


def test_from_hf_is_found_in_interop():
    with pytest.raises(AttributeError, match=r"Use pe_jax\.interop\.from_hf\."):
        _ = encodings.from_hf
    assert not hasattr(encodings, "from_hf")
