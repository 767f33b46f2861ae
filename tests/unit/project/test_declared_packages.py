"""The packages that pyproject.toml declares: imports, tested floors, bounds for private names."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from holdfast.sinks.iceberg import catalog

# Part of Python since 3.11. The declarations are the same on every Python: checking one is enough.
tomllib: Any = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# By the beginning of a path below src/holdfast: the extra that must be installed to import it.
EXTRA_OF = {
    "cli/": "cli",
    "pages/": "cli",
    "progress/lineage": "openlineage",
    "progress/telemetry": "opentelemetry",
    "progress/": "cli",
    "sinks/iceberg/": "iceberg",
    "reading/filter_text": "iceberg",
    "reading/iceberg_rows": "iceberg",
    "sources/iceberg": "iceberg",
    "sinks/lance/": "lance",
    "sources/lance": "lance",
    "spark/": "spark",
    "worker/transforms": "spark",
}
PACKAGE_OF = {
    "IPython": "ipython",
    "griffe": "griffelib",
    "lance": "pylance",
    "openlineage": "openlineage-python",
    "opentelemetry": "opentelemetry-api",
    "yaml": "pyyaml",
}
# Not installed by Holdfast; imported only if it is there.
BROUGHT_BY_OTHERS = {
    "ipython": "a notebook runs on it",
    "polars": "a transform asks for its frames, or returns them",
}
# Installed by `make example-envs`, into environments of their own.
OF_EXAMPLES = {"airflow", "dagster", "safetensors", "tokenizers"}
# Installed by `make emulators`, with moto.
OF_EMULATORS = {"boto3"}

# Private names of other packages that Holdfast calls or overrides. They may change in any minor
# version: such a package has an upper bound, and docs/explanation/dependencies.md names them.
PRIVATE_NAMES = {
    "pyiceberg": {
        "_convert_glue_to_iceberg",
        "_convert_orm_to_iceberg",
        "_convert_schema_if_needed",
        "_create_session",
        "_fetch_config",
        "_index_parents",
        "_inherit_from_manifest",
        "_load_file_io",
        "_meta",
        "_resolve_storage_credentials",
        "_response_to_table",
        "_update_and_stage_table",
    },
}


def requirements(lines: Iterable[str]) -> dict[str, Requirement]:
    """Return requirements by package name."""
    return {
        canonicalize_name((requirement := Requirement(line)).name): requirement for line in lines
    }


CORE = requirements(PROJECT["dependencies"])
EXTRAS = {name: requirements(of) for name, of in PROJECT["optional-dependencies"].items()}
DECLARED = {
    **CORE,
    **{name: requirement for extra in EXTRAS.values() for name, requirement in extra.items()},
}


def asked_for(file: str) -> dict[str, Requirement]:
    """Return what a file in requirements/ names, without hashes and comments."""
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    stated = [re.split(r"\s*(?:\\|#)", line)[0] for line in lines]
    return requirements(line for line in stated if line and not line.startswith(" "))


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of each imported module, anywhere in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


# Scripts that import each other as siblings.
SIBLINGS = {
    script.stem for folder in ("examples/*", "dev/stack") for script in ROOT.glob(f"{folder}/*.py")
}
NOT_OTHERS = {*sys.stdlib_module_names, "holdfast", "tests", "bench", "dev", "examples", *SIBLINGS}


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text())


def packages_of(file: Path) -> set[str]:
    """Return the third-party packages that a file imports."""
    names = {name.split(".")[0] for name in imported_modules(tree_of(file))} - NOT_OTHERS
    return {canonicalize_name(PACKAGE_OF.get(name, name)) for name in names}


def source_files() -> list[tuple[Path, str]]:
    """Return each file of src/holdfast, and its extra."""
    source = ROOT / "src" / "holdfast"
    found = []
    for file in sorted(source.rglob("*.py")):
        inside = file.relative_to(source).as_posix()
        extras = [extra for folder, extra in EXTRA_OF.items() if inside.startswith(folder)]
        found.append((file, extras[0] if extras else ""))
    return found


def test_each_import_is_declared_where_it_is_needed() -> None:
    """A package that only a dependency installs is gone once that dependency drops it."""
    missing = {
        f"{file.name}: {package}"
        for file, extra in source_files()
        for package in packages_of(file)
        if package not in {**CORE, **EXTRAS.get(extra, {}), **BROUGHT_BY_OTHERS}
    }
    assert missing == set()


def test_each_declared_package_is_imported() -> None:
    """Users do not install what nothing imports."""
    imported = {package for file, _ in source_files() for package in packages_of(file)}
    assert set(DECLARED) - imported == set()


@pytest.mark.slow_unit
def test_developers_get_each_package_that_a_file_imports() -> None:
    """`make setup` installs dev.txt and nothing else."""
    installed = asked_for("dev.in")
    missing = {
        f"{file.relative_to(ROOT)}: {package}"
        for folder in ("src", "tests", "bench", "dev", "examples")
        for file in ROOT.glob(f"{folder}/**/*.py")
        for package in packages_of(file)
        if package not in {*installed, *BROUGHT_BY_OTHERS, *OF_EXAMPLES, *OF_EMULATORS}
    }
    assert missing == set()


def bound(requirement: Requirement, operator: str) -> Version | None:
    """Return the version after an operator such as `>=`."""
    versions = [
        specifier.version for specifier in requirement.specifier if specifier.operator == operator
    ]
    return Version(versions[0]) if versions else None


def locked(file: str, name: str) -> set[Version]:
    """Return the versions of a package that a lock file pins: one, or one per Python."""
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    return {Version(found[1]) for line in lines if (found := re.match(rf"{name}==([^\s;]+)", line))}


@pytest.mark.parametrize("name", DECLARED)
def test_each_floor_is_what_the_lowest_versions_are_tested_with(name: str) -> None:
    """A floor that `make test-lowest` does not install is untested."""
    assert locked("lowest.txt", name) == {bound(DECLARED[name], ">=")}


@pytest.mark.parametrize("name", DECLARED)
def test_the_pinned_versions_are_allowed(name: str) -> None:
    """The tests run on versions that a user may install."""
    versions = locked("dev.txt", name)
    assert versions
    assert all(version in DECLARED[name].specifier for version in versions)


@pytest.mark.parametrize("name", DECLARED)
def test_the_page_of_versions_names_each_floor(name: str) -> None:
    """The page and pyproject.toml say the same."""
    floor = str(bound(DECLARED[name], ">="))
    assert f"| `{name}` | {floor} |" in (ROOT / "docs" / "versions.md").read_text()


def is_private(name: str) -> bool:
    """Whether a name is kept for the package's own use."""
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return, by the name that a file uses, the third-party module that it comes from."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        if node.module and node.module.split(".")[0] not in {*sys.stdlib_module_names, "holdfast"}
        for alias in node.names
    }


def private_imports(tree: ast.Module) -> set[str]:
    """Return the private names that are imported from other packages."""
    names = set(imported_names(tree))
    modules = [name.split(".") for name in imported_modules(tree)]
    return names.union(*(parts for parts in modules if parts[0] not in NOT_OTHERS))


def names_of(base: type) -> set[str]:
    """Return the names of a class, including the annotated attributes of its instances."""
    return set(dir(base)).union(*(vars(cls).get("__annotations__", {}) for cls in base.__mro__))


def private_overrides(tree: ast.Module) -> set[str]:
    """Return what the classes here override or use of another package's base class."""
    names, found = imported_names(tree), set()
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            named = ast.unparse(base).split("[", maxsplit=1)[0]
            if named in names:
                theirs = names_of(getattr(importlib.import_module(names[named]), named))
                found |= theirs & {
                    getattr(inner, "attr", getattr(inner, "name", "")) for inner in ast.walk(node)
                }
    return found


def named_here(tree: ast.Module) -> set[str]:
    """Return the names of the functions, classes and attributes that a file defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in {"self", "cls"}:
                found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)  # A field of a dataclass.
    return found


def private_attributes(tree: ast.Module, ours: set[str]) -> set[str]:
    """Return attributes that we do not define: of `self` in any file, of others in this one."""
    here, found = named_here(tree), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            made = ours if ast.unparse(node.value) in {"self", "cls"} else here
            found |= {node.attr} - made
    return found


@pytest.mark.slow_unit
def test_private_names_of_other_packages_are_the_listed_ones() -> None:
    """A new one is listed, and so gets an upper bound and a line in the documentation."""
    trees = [tree_of(file) for file, _ in source_files()]
    ours = set().union(*map(named_here, trees))
    # What PyIceberg itself must call, so that nothing bypasses the overrides.
    found = {name for way in catalog._WAYS.values() for pair in way.items() for name in pair}  # noqa: SLF001
    for tree in trees:
        found |= private_imports(tree) | private_overrides(tree) | private_attributes(tree, ours)
    assert set(filter(is_private, found)) == set().union(*PRIVATE_NAMES.values())


@pytest.mark.parametrize("package", PRIVATE_NAMES)
def test_a_package_with_private_names_has_an_upper_bound(package: str) -> None:
    """The next minor version may rename them; it is not installed until it has been tested."""
    (pinned,) = locked("dev.txt", package)
    assert bound(DECLARED[package], "<") == Version(f"{pinned.major}.{pinned.minor + 1}")
    page = (ROOT / "docs" / "explanation" / "dependencies.md").read_text()
    assert {name for name in PRIVATE_NAMES[package] if f"`{name}`" not in page} == set()


def test_pylance_has_an_upper_bound() -> None:
    """Schemas are copied by what pickle sees of them, which no version promises to keep."""
    (pinned,) = locked("dev.txt", "pylance")
    assert bound(DECLARED["pylance"], "<") == Version(f"{pinned.major + 1}")


def test_no_other_package_has_an_upper_bound() -> None:
    """A bound keeps users from versions that may work: the page of dependencies justifies each."""
    bounded = {
        name for name, requirement in DECLARED.items() if bound(requirement, "<") is not None
    }
    assert bounded == {*PRIVATE_NAMES, "pandas", "pylance"}
