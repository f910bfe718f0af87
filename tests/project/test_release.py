"""The release workflow's own commands, and what pages say about the package."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHANGES = "# Changelog\n\n## Unreleased\n\n- Later.\n\n## 1.0.0 (2027-01-01)\n\n- Now.\n\n## 0.9\n"


def workflow(name):
    return yaml.safe_load(
        (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
    )


@pytest.mark.parametrize(
    ("tag", "changes", "message"),
    [
        ("v1.0.0", CHANGES, ""),
        ("v1.0.1", CHANGES, "The tag is v1.0.1, but pe_jax.__version__ is 1.0.0."),
        ("v1.0.0", CHANGES.replace("1.0.0", "1.0.0rc1"), "has no section '## 1.0.0'"),
    ],
)
def test_the_notes_of_a_release(tmp_path, tag, changes, message):
    (tmp_path / "pe_jax").mkdir()
    (tmp_path / "pe_jax/__init__.py").write_text('__version__ = "1.0.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(changes)
    (step,) = (
        step
        for step in workflow("release.yml")["jobs"]["notes"]["steps"]
        if "run" in step
    )
    environment = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert bool(done.returncode) == bool(message) and message in done.stdout
    if not message:
        assert (tmp_path / "notes.md").read_text().split() == ["-", "Now."]


def test_actions_are_pinned_and_only_publishing_has_a_token():
    for file in (ROOT / ".github/workflows").glob("*.yml"):
        for action in re.findall(
            r"uses: (?!\./)(.*)", file.read_text(encoding="utf-8")
        ):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), (
                file.name,
                action,
            )
    jobs = workflow("release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not [
        name
        for name in jobs.keys() - {"publish"}
        if "id-token" in jobs[name]["permissions"]
    ]


def test_nothing_says_to_install_from_an_index_before_the_first_release():
    """Somebody else could own the name there."""
    if re.search(r"^## \d", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M):
        pytest.skip("pe_jax has been released")
    folders = (
        "pe_jax",
        "docs",
        "tests",
        "tools",
        "benchmarks",
        "examples",
        "research",
        "scripts",
    )
    files = [
        *ROOT.glob("*.md"),
        *(path for name in folders for path in (ROOT / name).rglob("*")),
    ]
    files = [path for path in files if path.suffix in (".md", ".py", ".sh", ".ipynb")]
    named = re.compile(r"""pip install (?:-\S+ )*['"]?pe[_-]jax\b(?!/)""")
    allowed = {ROOT / "CONTRIBUTING.md": 1}  # How to release.
    assert len(files) > 500
    for path in files:
        found = named.findall(path.read_text(encoding="utf-8"))
        assert len(found) == allowed.get(path, 0), path


def test_the_page_of_dependencies_is_complete():
    page = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {
        line for lines in lists for line in lines if not line.startswith("pe_jax[")
    }
    rows = re.findall(r"^\| `([^`]*)` \|", page, re.M)
    assert sorted(rows) == sorted(needed)


def test_the_wheel_has_every_file_of_the_package():
    """setuptools finds the modules; other files are named."""
    package = ROOT / "pe_jax"
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    others = {str(path) for path in files if path.suffix not in (".py", ".pyc")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "tool"
    ]
    patterns = settings["setuptools"]["package-data"]["pe_jax"]
    assert others == {
        str(path.relative_to(package)) for p in patterns for path in package.glob(p)
    }
    folders = {path.parent for path in files if path.suffix == ".py"}
    assert not [
        folder for folder in folders if not (package / folder / "__init__.py").is_file()
    ]
