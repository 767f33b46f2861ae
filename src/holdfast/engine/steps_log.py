"""The steps of a run in the log of its driver: ids, names and numbers, and nothing else.

The logger `holdfast` has no handler of ours: who wants to read it sets its level to INFO. What a
user must know is a warning or an error, and not here.
"""

from __future__ import annotations

import logging

from holdfast.text import printable, without_passwords

_log = logging.getLogger("holdfast")


def say(run_id: str, text: str) -> None:
    """Log one step.

    Args:
        run_id: Whose; also, as it is, in the record's field `holdfast_run`.
        text: What was done. No value of a setting may be in it: it could be a secret.
    """
    # One step is one line: an id with a line break must not write a second one.
    told = printable(without_passwords(text))
    extra = {"holdfast_run": run_id}
    _log.info("run %s: %s", printable(run_id), told, extra=extra, stacklevel=2)
