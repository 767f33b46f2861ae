"""The mark as text: how a run's name stands inside a table, whatever the format."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.base import RunMark

MARK_PREFIX = "holdfast.run."
# The mark once more, in the summary of its snapshot or the note of its version.
MARK_NOTE = "holdfast.mark"
# A table keeps so many of them: each new one drops the oldest beyond that.
MARKS_MAX = 100


def mark_text(mark: RunMark, **more: str) -> str:
    """Return the mark as it stands in the table.

    Args:
        mark: The mark.
        **more: What a format has to know besides.
    """
    return json.dumps(
        {
            "nonce": mark.run_nonce,
            "intent": mark.intent_number,
            "intent_nonce": mark.intent_nonce,
            "snapshot": mark.snapshot_id,
            "sequence": mark.sequence_number,
            **more,
        }
    )


def oldest_beyond(properties: Mapping[str, str], ours: str, most: int) -> list[tuple[int, str]]:
    """Return the marks that give way to a new one: sequence number and name, the oldest first.

    Args:
        properties: What the table holds, marks among it.
        ours: The name of the new mark.
        most: How many marks may stand in the end.

    Raises:
        UnsupportedTableError: A mark cannot be read.
    """
    others = sorted(
        (parse_mark(name, text).sequence_number, name)
        for name, text in properties.items()
        if name.startswith(MARK_PREFIX) and name != ours
    )
    return others[: max(0, len(others) + 1 - most)]


def mark_of_run(texts: Iterable[str], run_nonce: str) -> RunMark | None:
    """Return the mark that a run has left under whatever id; a copied ledger goes by another.

    Args:
        texts: Marks of the table, of any run; what cannot be read is passed over.
        run_nonce: Whose mark is wanted.
    """
    for text in texts:
        with contextlib.suppress(UnsupportedTableError):
            if (mark := parse_mark("", text)).run_nonce == run_nonce:
                return mark
    return None


def parse_mark(name: str, text: str) -> RunMark:
    """Read back what `mark_text` gave.

    Raises:
        UnsupportedTableError: It is none.
    """
    try:
        value = json.loads(text)
        return RunMark(
            run_nonce=value["nonce"],
            intent_number=value["intent"],
            snapshot_id=value["snapshot"],
            sequence_number=value["sequence"],
            intent_nonce=value.get("intent_nonce", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedTableError(
            table=name,
            what=f"the table property with this run's mark cannot be read: {text[:80]!r}",
            cure="restore that property from an older metadata file of the table",
        ) from error
