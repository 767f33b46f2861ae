"""Build what is released, look at what is in it, install it, and try it as a user would.

    make release-check                            build and check; nothing is kept
    make release-check ARGS="--out release"       keep the archives, the notes and the list of files
    make release-check ARGS="--tag v0.1.0"        also: the tag is the version, which has its notes

The source archive and the wheel are each installed, with all extras, into an environment of their
own, in which the README's quickstart is started, killed and started again. Needs Java, and uv or
pip. `--newest` installs the newest versions of dependencies in place of the tested ones.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from dev.public_api import difference
from holdfast import __version__

ROOT = Path(__file__).parents[1]
EXTRAS = "spark,iceberg,lance,cli"
QUICKSTART_ROWS = 4000
_SOURCE = "src/holdfast/"
_TOP_FILES = (".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml")
_LOCKED = re.compile(r"^[\w.-]+==[^\\\n]+", re.MULTILINE)
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP_TIMEOUT_S = 900.0


class CheckError(Exception):
    """What is released is not as it should be."""


def main() -> None:
    """Run every check; stop at the first that fails.

    Raises:
        SystemExit: A check failed.
    """
    given = _arguments()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _check(given, Path(folder))
    except CheckError as error:
        raise SystemExit(f"release-check: {error}") from error
    print("release-check: all passed")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument("--tag", help="the tag that is released")
    parser.add_argument("--out", type=Path, help="keep archives, notes and lists in this folder")
    parser.add_argument("--sbom", action="store_true", help="write a bill of materials, to --out")
    parser.add_argument("--newest", action="store_true", help="with the newest dependencies")
    parser.add_argument("--no-install", action="store_true", help="build and look, install nothing")
    given = parser.parse_args()
    if given.sbom and (given.out is None or given.no_install):
        parser.error("--sbom needs --out, and is made of what is installed")
    return given


def _check(given: argparse.Namespace, folder: Path) -> None:
    """Do the checks, the quick ones first.

    Raises:
        CheckError: One failed.
    """
    if changed := difference():
        raise CheckError(changed)
    print("public API: as in tests/public_api.txt")
    notes = notes_of(__version__ if given.tag else "", (ROOT / "CHANGELOG.md").read_text())
    if given.tag:
        refuse_tag(given.tag, __version__)
    archives = build(folder / "dist")
    contents = {archive.name: names_in(archive) for archive in archives}
    for name, names in contents.items():
        refuse_contents(name, names, _tracked())
        print(f"{name}: {len(names)} files, none missing and none too many")
    if given.out:
        _keep(given.out, archives, contents, notes)
    for archive in () if given.no_install else archives:
        began = time.monotonic()
        python = install(archive, folder / archive.name.rsplit("-", 1)[-1], newest=given.newest)
        if given.sbom and archive.suffix == ".whl":
            _write_sbom(python, given.out / "holdfast.cdx.json")
        try_quickstart(python, Path(tempfile.mkdtemp(dir=folder)))
        print(f"{archive.name}: installed, and the quickstart resumed: {_seconds(began)}")


def refuse_tag(tag: str, version: str) -> None:
    """Refuse a tag that is not the version's.

    Raises:
        CheckError: It is another version's.
    """
    if tag != f"v{version}":
        raise CheckError(f"the tag is {tag}, and src/holdfast/_version.py says {version}")


def notes_of(version: str, changelog: str) -> str:
    """Return what the changelog says about a version, or about the next one.

    Args:
        version: The version; empty for what is not released yet.
        changelog: The changelog's text.

    Raises:
        CheckError: It says nothing, or more is left under "Unreleased".
    """
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    # A heading may give the day: "0.1.0 - 2026-12-01".
    named: dict[str, str] = {heading.split()[0]: text.strip() for heading, text in sections.items()}
    if version and named.get("Unreleased"):
        raise CheckError('CHANGELOG.md has entries under "Unreleased": put them below the version')
    notes: str = named.get(version or "Unreleased", "")
    if version and not notes:
        raise CheckError(f'CHANGELOG.md has no section "## {version} - <day>"')
    return notes


def build(folder: Path) -> list[Path]:
    """Build the source archive, and the wheel from it; return both.

    Raises:
        CheckError: One cannot be built, or not exactly one of each was.
    """
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    found = sorted(folder.iterdir())
    wanted = [f"holdfast-{__version__}-py3-none-any.whl", f"holdfast-{__version__}.tar.gz"]
    if [file.name for file in found] != wanted:
        raise CheckError(f"built {[file.name for file in found]}, not {wanted}")
    return found


def names_in(archive: Path) -> list[str]:
    """Return the paths of the files in an archive, without the folder that holds all of a sdist."""
    if archive.suffix == ".whl":
        return sorted(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as opened:
        return sorted(name.partition("/")[2] for name in opened.getnames())


def refuse_contents(archive: str, names: list[str], tracked: set[str]) -> None:
    """Refuse an archive that lacks a file of the package, or has any other.

    Args:
        archive: Its name.
        names: What is in it.
        tracked: The files of the package in the repository, below the repository's root.

    Raises:
        CheckError: A file is missing, or should not be there.
    """
    if archive.endswith(".whl"):
        metadata = f"holdfast-{__version__}.dist-info/"
        own = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
        wanted = {name.removeprefix("src/") for name in tracked} | {metadata + of for of in own}
    else:
        wanted = {*tracked, *_TOP_FILES}
    if missing := sorted(wanted - set(names)):
        raise CheckError(f"{archive} lacks {', '.join(missing)}")
    if more := sorted(set(names) - wanted):
        raise CheckError(f"{archive} has {', '.join(more)}, which git does not track")


def _tracked() -> set[str]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", _SOURCE]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name}


def _keep(out: Path, archives: list[Path], contents: dict[str, list[str]], notes: str) -> None:
    """Copy the archives to `dist` in a folder, and write beside it what is in them."""
    shutil.rmtree(out / "dist", ignore_errors=True)
    (out / "dist").mkdir(parents=True)
    for archive in archives:
        shutil.copy2(archive, out / "dist")
    lines = [
        f"{archive}\n" + "".join(f"  {name}\n" for name in of) for archive, of in contents.items()
    ]
    (out / "contents.txt").write_text("".join(lines))
    (out / "notes.md").write_text(notes + "\n")


def install(archive: Path, folder: Path, *, newest: bool) -> Path:
    """Install an archive with all extras into a new environment; return its Python.

    Raises:
        CheckError: It cannot be installed.
    """
    python = folder / "bin" / "python"
    wanted = [f"{archive}[{EXTRAS}]"]
    if not newest:
        pins = folder.with_suffix(".txt")
        lines = _LOCKED.findall((ROOT / "requirements" / "dev.txt").read_text())
        pins.write_text("\n".join(line.strip() for line in lines) + "\n")
        wanted += ["--constraint", str(pins)]
    if uv := _working_uv():
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), *wanted])
    else:
        # Without pip in it: the bill of materials then lists what Holdfast needs and nothing else.
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        _run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *wanted])
    return python


def _working_uv() -> str:
    uv = shutil.which("uv")
    # A version manager may leave a command that only complains.
    works = uv and subprocess.run([uv, "--version"], check=False, capture_output=True)
    return uv if uv and works and works.returncode == 0 else ""


def _write_sbom(python: Path, file: Path) -> None:
    """Write the bill of materials of an environment.

    Raises:
        CheckError: It cannot be written.
    """
    project = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    form = ["--output-format", "JSON", "--output-reproducible", "--output-file", str(file)]
    _run(["cyclonedx-py", "environment", *project, *form, str(python)])
    print(f"{file}: {file.stat().st_size:,} bytes")


def try_quickstart(python: Path, folder: Path) -> None:
    """Start the README's quickstart, kill it, start it again, and once more.

    Raises:
        CheckError: It did not resume, or the table does not hold each row once.
    """
    script, commands = quickstart((ROOT / "README.md").read_text())
    (folder / "quickstart.py").write_text(script)
    kill, again = commands
    _want(r"killed: [\d,]+ of 4,000 rows", _run(kill, python, folder))
    second = _run(again, python, folder)
    _want(r"kept +[\d,]+ rows of earlier starts", second)
    _want(f"{QUICKSTART_ROWS} rows, {QUICKSTART_ROWS} different ids", second)
    _want("already committed", _run(again, python, folder))
    _run(["python", "-I", "-c", "import lance, holdfast.sinks.lance.sink"], python, folder)


def quickstart(readme: str) -> tuple[str, list[list[str]]]:
    """Return the quickstart's script, and the commands that kill it and start it again.

    Raises:
        CheckError: The README has not one script and one block of commands for it.
    """
    blocks = _BLOCK.findall(readme)
    scripts = [code for kind, code in blocks if kind == "python" and '"quickstart-1"' in code]
    lines = [code for kind, code in blocks if kind == "console" and "holdfast drill" in code]
    if len(scripts) != 1 or len(lines) != 1:
        raise CheckError("README.md has not one quickstart, with the commands that kill it")
    return scripts[0], [shlex.split(line) for line in lines[0].splitlines()]


def _want(pattern: str, printed: str) -> None:
    if not re.search(pattern, printed):
        raise CheckError(f"the quickstart did not print {pattern!r}, but:\n{printed}")


def _run(command: list[str], python: Path | None = None, folder: Path = ROOT) -> str:
    """Run a command and return what it printed.

    Args:
        command: The command.
        python: The Python of an environment whose commands come first on the path, as after
            `source bin/activate`; this checkout is then out of sight.
        folder: Where it runs.

    Raises:
        CheckError: It failed.
    """
    environment = dict(os.environ)
    if python is not None:
        environment = {name: of for name, of in environment.items() if name[:6] != "PYTHON"}
        environment.pop("PYSPARK_PYTHON", None)
        environment.pop("PYSPARK_DRIVER_PYTHON", None)
        environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        [shutil.which(command[0], path=environment["PATH"]) or command[0], *command[1:]],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_STEP_TIMEOUT_S,
    )
    if done.returncode:
        shown = shlex.join(command)
        raise CheckError(f"{shown} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    main()
