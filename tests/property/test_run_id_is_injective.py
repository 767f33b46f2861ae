"""Distinct run ids never share a folder, whatever their characters."""

from __future__ import annotations

from urllib.parse import unquote

from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.model.stored import encode_run_id

# Characters that encodings trip over, beside all others.
_ids = st.text(st.sampled_from("a.=-_/%3D2E é\n") | st.characters(codec="utf-8"), max_size=30)


def _segment(run_id: str) -> str | None:
    try:
        return encode_run_id(run_id)
    except SettingsError:
        return None


@given(_ids, _ids)
def test_distinct_ids_never_share_a_segment(one: str, other: str) -> None:
    """Two ids that are accepted have the same segment only if they are the same."""
    first, second = _segment(one), _segment(other)
    assume(first is not None and second is not None)
    assert (first == second) == (one == other)


@given(_ids)
def test_a_segment_decodes_to_its_id(run_id: str) -> None:
    """The encoding can be undone, so no two ids can have the same segment."""
    segment = _segment(run_id)
    assume(segment is not None)
    assert segment is not None
    assert unquote(segment.replace("%", "%25").replace("=", "%")) == run_id
