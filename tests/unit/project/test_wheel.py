"""The wheel as a user gets it: built, and installed alone into a fresh environment."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow_unit

# What a user would write. The catalog is never reached: the missing extra is noticed first.
APPEND = """
import json, sys, tempfile
import holdfast
table = holdfast.IcebergTable("db.t", catalog={"type": "sql", "uri": "sqlite://"})
run = holdfast.Run("r", store="file://" + tempfile.mkdtemp())
try:
    run.append(object(), to=table, key="id")
except holdfast.errors.MissingExtraError as error:
    print(json.dumps(str(error)))
else:
    sys.exit("append did not raise")
"""

ENGINES_PRESENT = """
import json, importlib.util
import holdfast
engines = ("pyspark", "pyiceberg", "lance")
print(json.dumps([name for name in engines if importlib.util.find_spec(name)]))
"""


class Installed(NamedTuple):
    """The wheel, and an environment that holds only it and its dependencies."""

    wheel: Path
    python: Path

    def run(self, code: str) -> str:
        """Run code in the fresh environment, outside the checkout; return what it printed."""
        # -I keeps PYTHONPATH and the current folder out, so that only the wheel can be found.
        done = subprocess.run(
            [self.python, "-I", "-W", "error", "-c", code],
            cwd=self.wheel.parent,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it with the dependencies it declares and no extra."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    # The same versions as in this environment, so that the package cache already holds them.
    wanted = [
        str(wheel),
        *(f"{name}=={version(name)}" for name in ("msgspec", "pyarrow", "obstore")),
    ]
    python = folder / "venv" / "bin" / "python"
    if uv := shutil.which("uv"):
        subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, python.parents[1]], check=True
        )
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *wanted], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    return Installed(wheel, python)


def test_the_wheel_holds_the_package_and_nothing_else(installed: Installed) -> None:
    """Types and licence ship; tests, benchmarks and scripts do not."""
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert "holdfast/py.typed" in names
    pages = {name.partition("pages/")[2] for name in names if "pages/" in name}
    assert {"page.html.j2", "charts.html.j2", "page.css"} <= pages
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"holdfast"}


def test_the_wheel_imports_without_any_engine(installed: Installed) -> None:
    """Neither pyspark nor pyiceberg nor lance is a dependency of `import holdfast`."""
    assert json.loads(installed.run(ENGINES_PRESENT)) == []


def test_the_wheel_knows_its_version(installed: Installed) -> None:
    """An executor can compare versions with only the package installed."""
    printed = installed.run("import holdfast; print(holdfast.__version__)").strip()
    assert f"holdfast-{printed}-" in installed.wheel.name


def test_a_missing_extra_is_named_with_how_to_install_it(installed: Installed) -> None:
    """Without the engines an append fails with the command that installs what is missing."""
    message = json.loads(installed.run(APPEND))
    assert re.search(r'pip install "\.\[[a-z,]*(iceberg|spark)[a-z,]*\]"', message)
