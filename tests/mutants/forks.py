"""Try changes in forks of one process that has collected the tests, and judge what notices them.

To collect the tests and import the product takes half a minute; a fork takes milliseconds. Each
trial is a child that applies its change, runs its tests up to the first failure and exits, so that
nothing of one trial reaches another. Some trials need a fresh process all the same: a change that
cannot be applied to loaded code (see `change`), and tests that a fork cannot run, because they need
Spark or a server, or because their modules start a thread when they are imported.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

import pytest

from tests.mutants.change import ROOT, SOURCE, Change, environment_of

# A test that takes longer in a fork fails, with a change and without one: see `judged`.
_TEST_S = 90
# For what a test's own limit cannot end.
_TRIAL_S = 1_200
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
# Of a child, so that a loop without an end does not fill the machine.
_MEMORY_BYTES_MAX = 4 << 30
_NOT_IN_A_FORK = ("spark", "connect", "stack", "crash")
# Arrow starts this one when it is imported, and stops and starts it at a fork.
_SAFE_THREAD = "jemalloc_bg_thd"
_SUMMARY = re.compile(r"^(FAILED|ERROR) (.*)$", re.MULTILINE)

End: TypeAlias = Literal["killed", "survived", "timeout", "error", "not in a fork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a trial."""

    end: End
    # The test that failed, when, and the last line of its message.
    by: str = ""
    when: str = ""
    message: str = ""
    tests: int = 0
    has_started_processes: bool = False

    @property
    def is_noticed(self) -> bool:
        """Whether the tests noticed the change."""
        return self.end in {"killed", "timeout"}

    def __str__(self) -> str:
        """Return it in a few words."""
        if self.end == "killed":
            return f"killed by {self.by} ({self.when}: {self.message})"
        if self.end == "survived":
            return f"SURVIVED {self.tests} tests"
        return f"{self.end} {self.message}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one process runs: tests, on the product with a change or as it is."""

    change: Change | None
    tests: Sequence[str]
    is_fresh: bool


Judge: TypeAlias = Generator[Trial, Verdict, None]


@dataclass(slots=True)
class _Child:
    trial: Trial
    judge: Judge
    folder: Path
    pid: int
    began: float = field(default_factory=time.monotonic)


class Forks:
    """Runs trials of the tests that were collected; a pytest plugin."""

    def __init__(self, work: Callable[[Forks], int], trial_s: float = _TRIAL_S) -> None:
        """Keep what is to be done with the collected tests."""
        self.items: dict[str, pytest.Item] = {}
        # Tests that need a fresh process.
        self.not_in_a_fork: set[str] = set()
        self.forks = self.fresh = 0
        # Tests that fail without a change.
        self.unfit: set[str] = set()
        self.result: int | None = None
        self._fit: set[str] = set()
        self._work = work
        self._trial_s = trial_s
        self._reports: list[pytest.TestReport] = []
        self._threads = _threads()
        self._modules_with_threads: set[str] = set()

    # ---- what pytest calls

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note which module starts a thread when it is imported."""
        if (threads := _threads()) != self._threads:
            self._threads = threads
            self._modules_with_threads.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test reports, in a child."""
        self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work, instead of running the tests here."""
        if session.testsfailed:
            return True
        self.items = {item.nodeid: item for item in session.items}
        self.not_in_a_fork = {
            name
            for name, item in self.items.items()
            if any(item.get_closest_marker(marker) for marker in _NOT_IN_A_FORK)
            or name.partition("::")[0] in self._modules_with_threads
        }
        gc.collect()
        self.result = self._work(self)
        return True

    # ---- how a change is judged

    def judged(
        self, change: Change, tests: Sequence[str], *, is_fresh: bool = False
    ) -> Generator[Trial, Verdict, Verdict]:
        """Try a change: first in a fork, and in a fresh process if that may say more.

        A test notices a change only if it passes without it.

        Args:
            change: The change.
            tests: The tests that may notice it, by their ids.
            is_fresh: Whether only a fresh process shows what the change does.
        """
        while tests := [name for name in tests if name not in self.unfit]:
            verdict = yield from self._tried(change, tests, is_fresh=is_fresh)
            if verdict.end != "killed" or (yield from self._passes_without(verdict.by)):
                return verdict
        return Verdict(end="error", message="no test passes without a change")

    def _tried(
        self, change: Change, tests: Sequence[str], *, is_fresh: bool
    ) -> Generator[Trial, Verdict, Verdict]:
        others = [name for name in tests if is_fresh or name in self.not_in_a_fork]
        in_fork = [name for name in tests if name not in others]
        verdict = Verdict(end="survived")
        if in_fork:
            verdict = yield Trial(change=change, tests=in_fork, is_fresh=False)
            # A process that a test starts may choose by itself where it imports the product from.
            if verdict.end == "not in a fork" or (
                verdict.end == "survived" and verdict.has_started_processes
            ):
                others = list(tests)
        if verdict.end in {"survived", "not in a fork"} and others:
            verdict = yield Trial(change=change, tests=others, is_fresh=True)
        return verdict

    def _passes_without(self, test: str) -> Generator[Trial, Verdict, bool]:
        if test not in self._fit:
            is_fresh = test in self.not_in_a_fork
            verdict = yield Trial(change=None, tests=[test], is_fresh=is_fresh)
            if verdict.end == "survived":
                self._fit.add(test)
            else:
                self.unfit.add(test)
        return test not in self.unfit

    # ---- how trials are run

    def run(self, judges: Iterable[Judge], jobs: int) -> None:
        """Run each judge's trials, some at a time; a judge gets a verdict and names the next."""
        waiting, running = iter(judges), list[_Child]()
        try:
            while True:
                while len(running) < jobs and (judge := next(waiting, None)) is not None:
                    self._advance(judge, None, running)
                if not running:
                    return
                for child in [child for child in running if self._has_ended(child)]:
                    running.remove(child)
                    self._advance(child.judge, self._verdict(child), running)
                time.sleep(0.01)
        finally:
            for child in running:
                _end(child)
                os.waitpid(child.pid, 0)

    def _advance(self, judge: Judge, verdict: Verdict | None, running: list[_Child]) -> None:
        try:
            trial = next(judge) if verdict is None else judge.send(verdict)
        except StopIteration:
            return
        folder = Path(tempfile.mkdtemp(prefix="hf-"))
        self.forks, self.fresh = self.forks + (not trial.is_fresh), self.fresh + trial.is_fresh
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lance warns of forks; here it has done nothing yet.
            pid = os.fork()
        if pid == 0:
            self._be_child(trial, folder)
        running.append(_Child(trial, judge, folder, pid))

    def _has_ended(self, child: _Child) -> bool:
        if os.waitpid(child.pid, os.WNOHANG)[0]:
            return True
        if time.monotonic() - child.began < self._trial_s:
            return False
        _killed(child.pid)
        os.waitpid(child.pid, 0)
        (child.folder / "verdict").write_text(
            json.dumps({"end": "timeout", "message": f"after {self._trial_s:.0f} s"})
        )
        return True

    def _verdict(self, child: _Child) -> Verdict:
        """Read what a child has left, and remove its folder and the processes that it started."""
        try:
            with contextlib.suppress(FileNotFoundError):
                return Verdict(**json.loads((child.folder / "verdict").read_text()))
            output = (child.folder / "output").read_text(errors="replace")
            return _read_summary(output, child.trial)
        finally:
            _end(child)

    # ---- in the child

    def _be_child(self, trial: Trial, folder: Path) -> NoReturn:
        """Run a trial in this process, which ends."""
        try:
            os.setsid()
            tempfile.tempdir = str(folder)
            os.environ["TMPDIR"] = str(folder)
            _redirect_into(folder / "output")
            if trial.change is not None:
                # For the processes that tests start.
                copy = folder / "src"
                trial.change.write_into(copy)
                os.environ |= environment_of(copy)
                sys.path.insert(0, str(copy))
            if trial.is_fresh:
                _exec_pytest(trial.tests)
            verdict = self._try(trial)
            (folder / "verdict.new").write_text(json.dumps(asdict(verdict)))
            (folder / "verdict.new").rename(folder / "verdict")
        except BaseException:  # noqa: BLE001 - a child must never return into the parent's code.
            traceback.print_exc()
        finally:
            os._exit(0)

    def _try(self, trial: Trial) -> Verdict:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
        if trial.change is not None and not trial.change.apply():
            return Verdict(end="not in a fork")
        gc.freeze()  # The collector would touch, and so copy, all pages that are shared.
        items = [self.items[name] for name in trial.tests]
        for number, item in enumerate(items, start=1):
            self._reports.clear()
            following = items[number] if number < len(items) else None
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            for report in self._reports:
                if report.failed:
                    return Verdict(
                        end="killed",
                        by=item.nodeid,
                        when=report.when,
                        message=_last_line(report.longreprtext),
                        tests=number,
                    )
        return Verdict(
            end="survived",
            tests=len(items),
            has_started_processes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0,
        )


def with_collected(arguments: Sequence[str], work: Callable[[Forks], int]) -> int:
    """Collect tests, give them to some work, and return its result.

    Args:
        arguments: What pytest collects.
        work: Returns the exit code.

    Raises:
        RuntimeError: The tests cannot be collected.
    """
    # Before numpy is imported: threads do not survive a fork.
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    os.chdir(ROOT)
    sys.path.insert(0, str(SOURCE))
    began, shown = time.monotonic(), sys.stdout

    def collected(forks: Forks) -> int:
        with contextlib.redirect_stdout(shown):
            print(
                f"collected {len(forks.items)} tests in {time.monotonic() - began:.0f} s, "
                f"{len(forks.not_in_a_fork)} of which need a fresh process",
                flush=True,
            )
            result = work(forks)
            took = time.monotonic() - began
            print(f"{forks.forks} forks, {forks.fresh} fresh processes, {took:.0f} s")
            for name in sorted(forks.unfit):
                print(f"fails without a change: {name}")
            return result

    forks = Forks(collected)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        # Examples that a change makes fail are not kept.
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        # Without capture: a file that is captured into would be shared by all children.
        pytest.main([*_OPTIONS, "-s", f"--timeout={_TEST_S}", *arguments], plugins=[forks])
    if forks.result is None:
        raise RuntimeError(f"nothing was collected: {out.getvalue()[-4000:]}")
    return forks.result


def _threads() -> int:
    """Return how many threads this process has that a fork would lose."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return sum(name != _SAFE_THREAD for name in names)


def _redirect_into(output: Path) -> None:
    """Let this process read nothing, and write into a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    for number, target in enumerate((nothing, written, written)):
        os.dup2(target, number)


def _exec_pytest(tests: Sequence[str]) -> NoReturn:
    command = [sys.executable, "-m", "pytest", *_OPTIONS, "-x", "--tb=short", *tests]
    os.execv(sys.executable, command)  # noqa: S606 - its own interpreter.


def _read_summary(output: str, trial: Trial) -> Verdict:
    """Return the verdict of a fresh process, from what pytest has printed."""
    last = _last_line(output)
    if not trial.is_fresh or (found := _SUMMARY.search(output)) is None:
        is_passed = trial.is_fresh and re.search(r"\b(passed|skipped)\b.* in \d", last)
        if is_passed and "failed" not in last and "error" not in last:
            return Verdict(end="survived", tests=len(trial.tests))
        return Verdict(end="error", message=output[-2000:])
    named = found[2]
    by = max((name for name in trial.tests if named.startswith(name)), key=len, default="")
    if not by:  # The product or the test could not be imported.
        return Verdict(end="error", message=named)
    when = "call" if found[1] == "FAILED" else "setup"
    return Verdict(end="killed", by=by, when=when, message=named[len(by) :].removeprefix(" - "))


def _last_line(text: str) -> str:
    """Return the last error of a traceback, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return [*lines[-1:], *errors[:1]][-1][:200] if lines else ""


def _killed(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _end(child: _Child) -> None:
    _killed(child.pid)
    shutil.rmtree(child.folder, ignore_errors=True)
