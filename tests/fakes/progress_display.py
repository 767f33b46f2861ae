"""A display that remembers what it was shown, and fails on request."""

from __future__ import annotations

from holdfast.model.history import Progress
from holdfast.progress.frame import Frame, Pace


class MemoryDisplay:
    """Keeps frames. Its pauses are those of a terminal."""

    first_s = every_s = 2.0
    tick_s = 1.0

    def __init__(self) -> None:
        """Start with nothing shown and no fault."""
        self.frames: list[Frame] = []
        self.ended: list[Frame | None] = []
        self.let_go_calls = 0
        self.fails = False

    def show(self, frame: Frame) -> None:
        """Keep the frame."""
        if self.fails:
            raise OSError("the terminal is gone")
        self.frames.append(frame)

    def end(self, frame: Frame | None) -> None:
        """Keep the last frame."""
        self.ended.append(frame)

    def let_go(self) -> None:
        """Count the call."""
        self.let_go_calls += 1


def frame_of_a_resume(*, input_rows: int | None = 4000) -> Frame:
    """Return a frame that has something in every line."""
    progress = Progress(
        run_id="embed-2026-11",
        state="started",
        input_rows=input_rows,
        done_rows=2064,
        kept_rows=1000,
        quarantined_rows=12,
        tasks_begun=3,
        tasks_ended=1,
        waiting_chunks=1,
        files=3,
        size_bytes=9700,
        task_seconds=80.0,
        waited_s=4.0,
        kept_seconds=43.0,
        cost=2.5,
        kept_cost=1.25,
        start=2,
        passes=1,
        reason="resumes where the last start ended",
    )
    return Frame(
        run_id="embed-2026-11",
        table="lake.ml.embeddings",
        progress=progress,
        pace=Pace(rows_per_s=24.2, left_s=80.0),
        elapsed_s=72.4,
        silent_s=75.0,
    )
