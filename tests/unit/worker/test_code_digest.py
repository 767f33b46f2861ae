"""The code digest: the same in every process, and different for different code."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import per_worker
from holdfast.worker.code_digest import code_digest

ROOT = Path(__file__).parents[3]

# A user's script, in which every transform is the same code in every process.
PROGRAM = """
import functools
from holdfast import per_worker
from holdfast.worker.code_digest import code_digest

def plain(batch, factor=2):
    small = [x for x in batch if x in {"a", "b", "c", "d", "e"}]
    return (lambda: (small, factor, 1.5))()

class Model:
    def __init__(self, name):
        self.name = name
    def __call__(self, batch):
        return self.run(batch)
    def run(self, batch):
        return [batch, "model"]

transforms = [
    None, plain, Model("a"), Model("a").run, lambda batch: batch,
    per_worker(Model, "minilm", size=3, other=object()), functools.partial(plain, 3),
]
digests = [code_digest(transform) for transform in transforms]
"""
WRAPPED = """
def retry(f):
    @functools.wraps(f)
    def call(b):
        return f(b)
    return call

@retry
def transform(b):
    return ?
"""


def in_another_process(program: str) -> list[str]:
    """Return the digests that a script computes in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(*digests)"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return ended.stdout.split()


def defined(source: str, name: str = "transform") -> Any:  # noqa: ANN401 - any transform.
    """Return the object that a script defines under a name."""
    namespace: dict[str, Any] = {
        "__name__": "a_script",
        "functools": functools,
        "per_worker": per_worker,
    }
    exec(source, namespace)  # noqa: S102 - two versions of one script.
    return namespace[name]


def digest(source: str, change: str = "1") -> str:
    """Return the digest of a script's transform, with `?` replaced by something."""
    return code_digest(defined(source.replace("?", change)))


def test_the_same_code_has_the_same_digest_in_every_process() -> None:
    """Neither an address nor the order of a set is part of it."""
    here, there = defined(PROGRAM, "digests"), in_another_process(PROGRAM)
    assert here == there
    assert len(set(here)) == len(here)


@pytest.mark.parametrize(
    "source",
    [
        "def transform(b): return ?",
        "def transform(b): return b.name_?()",
        "transform = (lambda b: b + b, lambda b: b * b)[? - 1]",
        "def transform(b, n=?): return n",
        "transform = lambda b: '?'",
        "def transform(b): return [x + ? for x in b]",
        "def transform(b): return b in {0, ?, 3}",
        "def transform(b):\n def inner(): return ?\n return inner",
        "class transform:\n def __call__(self, b): return ?",
        "class transform:\n def helper(self): return ?",
        "class transform:\n def helper_?(self): return 0",
        "class Model:\n def __call__(self, b): return ?\ntransform = Model()",
        "class Model:\n def run(self, b): return ?\ntransform = Model().run",
        "def f(n): return n\ntransform = per_worker(f, 'model-?')",
        "def f(n): return n\ntransform = per_worker(f, n=?)",
        "def f(n): return ?\ntransform = per_worker(f, 0)",
        "def f(n, b): return n\ntransform = functools.partial(f, ?)",
        "transform = (None, lambda b: b)[? - 1]",
    ],
)
def test_other_code_has_another_digest(source: str) -> None:
    """A changed constant, name, operation, default, method or argument is noticed."""
    assert digest(source, "1") != digest(source, "2")
    assert digest(source, "1") == digest(source, "1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def transform(b): return 1", "\n\n# A comment.\ndef transform(b):\n    return 1"),
        ("def transform(b): return b", "def transform(batch): return batch"),
        ("transform = per_worker(str, a=1, b=2)", "transform = per_worker(str, b=2, a=1)"),
    ],
)
def test_what_is_not_code_does_not_matter(before: str, after: str) -> None:
    """Lines, comments, names of local variables and keyword order do not matter."""
    assert digest(before) == digest(after)


def test_a_digest_is_short_text() -> None:
    """It is in every claim, and in the report."""
    found = code_digest(lambda batch: batch)
    assert len(found) == 16
    assert int(found, 16) >= 0


def test_two_objects_without_a_repr_of_their_own_are_the_same() -> None:
    """Their repr is an address, which says nothing about the code."""
    source = "class Thing: pass\ntransform = per_worker(str, Thing(), thing=Thing())"
    assert digest(source) == digest(source)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "def f(b, m): return m\ntransform = functools.partial(f, m=?)", id="partial's keyword"
        ),
        pytest.param("def transform(b, *, m=?): return m", id="default of a keyword-only argument"),
        pytest.param(
            "class transform:\n M = ?\n def __call__(self, b): return self.M", id="class constant"
        ),
        pytest.param("class transform:\n @staticmethod\n def f(b): return ?", id="static method"),
        pytest.param(
            "class Base:\n def __call__(self, b): return ?\nclass transform(Base): pass",
            id="inherited method",
        ),
        pytest.param(WRAPPED, id="decorated function"),
        pytest.param("def f(m):\n return lambda b: m\ntransform = f(?)", id="value in a closure"),
        pytest.param(
            "transform = per_worker(str, 'model-?', object())", id="argument beside an object"
        ),
    ],
)
def test_code_that_a_user_considers_their_own_is_included(source: str) -> None:
    """The digest is documented to cover the transform's own code and its arguments."""
    assert digest(source, "1") != digest(source, "2")


def test_a_set_among_the_arguments_has_one_digest_in_every_process() -> None:
    """Otherwise strict_code would refuse the same script at every start."""
    program = (
        "from holdfast import per_worker\n"
        "from holdfast.worker.code_digest import code_digest\n"
        "digests = [code_digest(per_worker(dict, {'a', 'b', 'c', 'd', 'e', 'f'}))]"
    )
    assert in_another_process(program) == defined(program, "digests")


@pytest.mark.timeout(10)
def test_a_class_that_calls_super_is_visited_once() -> None:
    """The cell behind super() holds the class itself."""
    methods = "".join(f" def method_{i}(self): return super().__init__()\n" for i in range(12))
    source = f"class transform:\n{methods} def last(self): return ?"
    assert digest(source, "1") != digest(source, "2")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("MODEL = ?\ndef transform(b): return MODEL", id="constant of the script"),
        pytest.param(
            "def helper(b): return ?\ndef transform(b): return helper(b)",
            id="function of the script",
        ),
        pytest.param("class transform:\n MODELS = ('a', ?)", id="tuple of a class"),
    ],
)
def test_code_next_to_the_transform_is_included(source: str) -> None:
    """Only calls into other modules are documented as not followed."""
    assert digest(source, "1") != digest(source, "2")


def test_the_keys_of_a_dict_are_not_distinguished_by_their_address() -> None:
    """A function as a key has another repr in every process."""
    source = "transform = per_worker(str, {(lambda: 0): 1})"
    first, second = defined(source), defined(source)
    assert code_digest(first) == code_digest(second)


def test_a_library_object_has_one_digest_in_every_process() -> None:
    """A logger's module stores its import time, which is not part of a transform."""
    program = (
        "import logging\n"
        "from holdfast import per_worker\n"
        "from holdfast.worker.code_digest import code_digest\n"
        "digests = [code_digest(per_worker(dict, logging.getLogger('mine')))]"
    )
    assert in_another_process(program) == defined(program, "digests")


@pytest.mark.parametrize("known", ["{transform}", "{transform: 1}"])
def test_code_that_refers_to_itself_is_visited_once(known: str) -> None:
    """A transform may be in a set or a dict that is in its own closure."""
    source = (
        "def make():\n"
        " def transform(b): return known, ?\n"
        f" known = {known}\n"
        " return transform\n"
        "transform = make()"
    )
    assert digest(source, "1") != digest(source, "2")
