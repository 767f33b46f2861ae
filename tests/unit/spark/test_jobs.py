"""Jobs beside a plan: they can be cancelled, and nothing else of the user's session is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.spark.jobs import JobsBeside


class Context:
    """Stands in for a SparkContext: jobs run until their group is cancelled, or all are."""

    def __init__(self) -> None:
        """Start with a job of the user's."""
        self.running = ["the user's"]
        self._group = ""

    def setJobGroup(self, group: str, _description: str) -> None:  # noqa: N802 - PySpark's name.
        """Let the jobs that start from now on belong to a group."""
        self._group = group

    def setLocalProperty(self, *_: str) -> None:  # noqa: N802 - PySpark's name.
        """Take a setting."""

    def start(self) -> None:
        """Start a job."""
        self.running.append(self._group)

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802 - PySpark's name.
        """End the jobs of a group."""
        self.running = [job for job in self.running if job != group]

    def cancelAllJobs(self) -> None:  # noqa: N802 - PySpark's name.
        """End all jobs."""
        self.running.clear()


def test_jobs_of_the_user_go_on_when_those_beside_a_plan_are_cancelled() -> None:
    """A notebook may run others in the same session."""
    context = Context()
    session: Any = SimpleNamespace(sparkContext=context)
    beside = JobsBeside(session)
    beside.begin()
    context.start()
    context.start()
    assert len(context.running) == 3
    beside.cancel()
    assert context.running == ["the user's"]


def test_two_runs_in_a_session_do_not_cancel_each_others_jobs() -> None:
    """Each has a group of its own."""
    context = Context()
    session: Any = SimpleNamespace(sparkContext=context)
    first, second = JobsBeside(session), JobsBeside(session)
    first.begin()
    context.start()
    second.begin()
    context.start()
    first.cancel()
    assert len(context.running) == 2
    second.cancel()
    assert context.running == ["the user's"]


class Connected:
    """Stands in for a session of Spark Connect, which has tags in place of groups."""

    def __init__(self) -> None:
        """Start with a job of the user's."""
        self.running = ["the user's"]
        self._tag = ""

    def addTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name.
        """Tag the jobs that start from now on."""
        self._tag = tag

    def start(self) -> None:
        """Start a job."""
        self.running.append(self._tag)

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - PySpark's name.
        """End the jobs with a tag."""
        self.running = [job for job in self.running if job != tag]

    def interruptAll(self) -> None:  # noqa: N802 - PySpark's name.
        """End all jobs."""
        self.running.clear()


def test_jobs_of_the_user_go_on_under_connect_too() -> None:
    """Other clients have sessions of their own; other jobs of this one count as well."""
    session: Any = Connected()
    beside = JobsBeside(session)
    beside.begin()
    session.start()
    beside.cancel()
    assert session.running == ["the user's"]
