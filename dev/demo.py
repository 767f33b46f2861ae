"""Make the documentation's pictures from a real job that is killed and resumes.

A shell on a pseudo terminal starts `demo_job.py`; half way its process gets a SIGKILL; the same
command is typed again. What the screen showed becomes `docs/img/demo.svg`, a film of about twenty
seconds, and one moment of it becomes `docs/img/progress.svg`. Run it as `python -m dev.demo`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from dev.screen_svg import film, picture
from dev.terminal_session import Session

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "img"
COLUMNS, ROWS = 80, 22
COMMAND = "python describe.py"
# Spark's own log, and the lines that it always begins with, say nothing about the job.
QUIET = """
rootLogger.level = off
rootLogger.appenderRef.nowhere.ref = nowhere
appender.nowhere.type = Null
appender.nowhere.name = nowhere
"""
CHATTER = re.compile(r"^(WARNING: Using incubator|Setting default log|To adjust logging)")
DONE = re.compile(r" (\d+)%")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CLOCK = re.compile(r"(?:\d+ min )?\d+ s$")
KILL_AT = 30
# A viewer should not wait while Spark starts, or see a screen for only a tenth of a second.
PAUSE_MAX_S, PAUSE_MIN_S, LAST_S = 0.7, 0.12, 5.0
START_TIMEOUT_S = 600.0

Frames = list[tuple[float, tuple[str, ...]]]


def main() -> None:
    """Play the session, and write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        frames = play(Path(name))
    IMAGES.mkdir(exist_ok=True)
    moving = paced(frames)
    (IMAGES / "demo.svg").write_text(film(moving, COLUMNS, ROWS))
    (IMAGES / "progress.svg").write_text(picture(still(frames), COLUMNS))
    seconds = sum(pause for pause, _ in moving)
    print(f"{len(moving)} screens, {seconds:.0f} s, in {IMAGES.relative_to(HERE.parent)}")


def play(folder: Path) -> Frames:
    """Start the job, kill it half way, start it again; return what the screen showed."""
    shutil.copy(HERE / "demo_job.py", folder / "describe.py")
    (folder / "conf").mkdir()
    (folder / "conf" / "log4j2.properties").write_text(QUIET)
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PS1": "$ ",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TERM": "xterm-256color",
    }
    with closing(Session(folder, variables, COLUMNS, ROWS)) as session:
        session.read(1.0)
        session.type(COMMAND)
        session.read_until(lambda _: percent(session.screen.lines) >= KILL_AT, START_TIMEOUT_S)
        os.kill(job_of(session), signal.SIGKILL)
        session.read_until(lambda text: "Killed" in text, START_TIMEOUT_S)
        session.read(2.0)
        session.type(COMMAND)
        session.read_until(lambda text: "  time  " in text, START_TIMEOUT_S)
        session.read(1.0)
        return session.frames


def still(frames: Frames) -> Sequence[str]:
    """Return the picture of a resume at work, from the middle of its screens."""
    at_work = [screen for _, screen in frames if percent(screen) and "kept" in "".join(screen)]
    at_work = [screen for screen in at_work if " left" in "".join(screen[-8:])]
    screen = at_work[len(at_work) // 2]
    first = max(number for number, line in enumerate(screen) if "describe-2026-11" in line)
    return screen[first:-1]


def job_of(session: Session) -> int:
    """Return the process that the shell has started."""
    shell = session.process_id
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text(encoding="ascii")
    return int(children.split()[0])


def percent(screen: Sequence[str]) -> int:
    """Return the percentage of the bar on the screen; 0 if there is none at work."""
    for line in reversed(screen):
        plain = COLOURS.sub("", line)
        if "committed" in plain or "Killed" in plain:
            return 0
        if "━" in plain and (found := DONE.search(plain)) is not None:
            return int(found[1])
    return 0


def paced(frames: Frames) -> Frames:
    """Return how long each screen is shown, without those that are too short to see."""
    shown: Frames = []
    for (at, screen), (after, _) in pairwise(frames):
        if after - at < PAUSE_MIN_S and shown:
            continue
        if not shown or content(shown[-1][1]) != content(screen):
            shown.append((min(PAUSE_MAX_S, after - at), without_chatter(screen)))
    return [*shown, (LAST_S, without_chatter(frames[-1][1]))]


def without_chatter(screen: Sequence[str]) -> tuple[str, ...]:
    """Return the screen without the lines that Spark starts with."""
    return tuple(line for line in screen if not CHATTER.match(line))


def content(screen: Sequence[str]) -> list[str]:
    """Return what is on the screen apart from the clock, whose changes do not count."""
    plain = [COLOURS.sub("", line).rstrip() for line in without_chatter(screen)]
    return [CLOCK.sub("", line) if line.startswith("describe-") else line for line in plain]


if __name__ == "__main__":
    main()
