"""Find what install.sh put on this machine: binaries, jars, a JDK, PostgreSQL, the venv.

Linux only. Nothing here starts a server. Run as a script by install.sh:
`locate.py java 21` and `locate.py postgres` print a path, or exit with 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


class NotInstalledError(Exception):
    """Something that a server needs is not on this machine; the message says what to run."""


def cache_dir() -> Path:
    """Return the folder of downloads and builds (HOLDFAST_CACHE moves it)."""
    default = Path.home() / ".cache" / "holdfast"
    return Path(os.environ.get("HOLDFAST_CACHE") or default).absolute()


def state_dir() -> Path:
    """Return the folder of logs, data and stack.json (HOLDFAST_STACK_DIR moves it)."""
    default = Path.home() / ".cache" / "holdfast" / "stack"
    return Path(os.environ.get("HOLDFAST_STACK_DIR") or default).absolute()


def binary(name: str) -> Path:
    """Return a server that install.sh built into the cache.

    Raises:
        NotInstalledError: The binary is not in the cache.
    """
    path = cache_dir() / "bin" / name
    if not path.exists():
        hint = " with WITH=minio" if name == "minio" else ""
        message = f"{path} is missing: run dev/stack/install.sh{hint}"
        raise NotInstalledError(message)
    return path


def jars(folder: str) -> list[Path]:
    """Return the jars of one folder of the cache, sorted by name.

    Raises:
        NotInstalledError: The folder is missing or empty.
    """
    found = sorted((cache_dir() / folder).glob("*.jar"))
    if not found:
        hint = " with WITH=nessie" if folder == "nessie" else ""
        message = f"no jar in {cache_dir() / folder}: run dev/stack/install.sh{hint}"
        raise NotInstalledError(message)
    return found


def java(version_min: int, version_max: int = 999) -> Path:
    """Return a `java` of a suitable major version; the default one if it is suitable.

    Looks at JAVA_HOME, then PATH, then every JAVA_HOME_* variable (as CI images set), then at
    the JDKs beside those, since distributions keep them all in one folder.

    Raises:
        NotInstalledError: No Java is new enough.
    """
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parents[1])
    named = sorted(name for name in os.environ if name.startswith("JAVA_HOME_"))
    homes += [Path(os.environ[name]) for name in named if os.environ[name]]
    beside = {home.resolve().parent for home in homes}
    homes += [home for folder in sorted(beside) for home in sorted(folder.glob("*"))]
    for home in homes:
        if version_min <= _java_major(home) <= version_max:
            return home / "bin" / "java"
    message = f"no Java {version_min} or newer found: install one, or set JAVA_HOME_{version_min}"
    raise NotInstalledError(message)


def _java_major(home: Path) -> int:
    """Return the major version of a JDK from its release file; 0 if there is none."""
    release = home / "release"
    if not release.is_file() or not (home / "bin" / "java").exists():
        return 0
    found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text("utf-8"), re.MULTILINE)
    return int(found.group(1)) if found else 0


def postgres_bin() -> Path:
    """Return the folder that holds initdb and postgres (not on PATH on Debian).

    Raises:
        NotInstalledError: There is none.
    """
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    folders: list[Path] = []
    if dpkg := shutil.which("dpkg-query"):
        listed = subprocess.run(
            [dpkg, "--search", "*/bin/initdb"], capture_output=True, text=True, check=False
        )
        lines = [line for line in listed.stdout.splitlines() if ": " in line]
        folders = [Path(line.split(": ", 1)[1]).parent for line in lines]
    folders = [folder for folder in folders if (folder / "postgres").exists()]
    if not folders:
        message = "PostgreSQL's server is missing: run dev/stack/install.sh"
        raise NotInstalledError(message)
    return max(folders, key=lambda folder: [int(part) for part in re.findall(r"\d+", str(folder))])


def venv_python() -> Path:
    """Return the interpreter that has PySpark: HOLDFAST_PYTHON, the repo's .venv, or this one."""
    if chosen := os.environ.get("HOLDFAST_PYTHON"):
        return Path(chosen).absolute()
    in_repo = REPO / ".venv" / "bin" / "python"
    return in_repo if in_repo.exists() else Path(sys.executable)


def spark_home(python: Path) -> Path:
    """Return the folder of the pyspark package that an interpreter imports.

    Raises:
        NotInstalledError: The interpreter cannot import pyspark.
    """
    code = "import importlib.util as u; s = u.find_spec('pyspark'); print(s.origin if s else '')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if not found.stdout.strip():
        message = f"{python} has no pyspark: run make setup, or set HOLDFAST_PYTHON"
        raise NotInstalledError(message)
    return Path(found.stdout.strip()).parent


def main(arguments: list[str]) -> int:
    """Print one path for install.sh; return 1 when it is not there."""
    try:
        found = postgres_bin() if arguments[0] == "postgres" else java(int(arguments[1]))
    except NotInstalledError as error:
        print(error, file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
