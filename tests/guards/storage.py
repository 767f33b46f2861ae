"""The guards around failing calls: of the store, and of the user's own row function."""

from __future__ import annotations

from tests.guards.guard import Guard

_UPLOADS = "tests/unit/storage/test_upload.py"
_ANSWERS = "tests/unit/storage/test_objects.py -k bytes"
_LONG = "tests/unit/storage/test_objects.py -k list"
_RETRIES = "tests/unit/worker/test_transforms_retry.py"

STORAGE_GUARDS = (
    Guard(
        name="storage: what one request did not delete is deleted one by one",
        before=" must keep no other, and is named.\n            return uris\n",
        after="\n            return ()\n",
        test="tests/unit/storage/test_objects.py -k delete",
    ),
    Guard(
        name="storage: objects are asked for only if the store never lists them",
        before="                if not error.lasts:\n                    raise\n",
        after="                pass\n",
        test=_LONG,
    ),
    Guard(
        name="storage: old names are kept only if the store never copies",
        before="        if error.retry_safe:\n            raise\n        book.tally",
        after="        book.tally",
        test="tests/unit/engine/test_resolve.py -k copy",
    ),
    Guard(
        name="storage: files stay behind only if the store never deletes",
        before="        if error.retry_safe:\n            raise\n        return f",
        after="        return f",
        test="tests/unit/engine/test_cleanup_live_files.py -k store",
    ),
    Guard(
        name="storage: forbidden files are missing only if others may be read",
        before="        if not any(sizes):\n",
        after="        if not sizes:\n",
        test="tests/unit/sinks/test_staged.py -k forbidden",
    ),
    Guard(
        name="storage: keys that have expired make no file missing",
        before="    found = io_runtime().each(ask, uris)\n    storage.size(known)\n",
        after="    found = io_runtime().each(ask, uris)\n",
        test="tests/unit/sinks/test_staged.py -k expire",
    ),
    Guard(
        name="manifests: a compression that needs another package is not used",
        before="_CODECS.get(wanted, _GZIP)",
        after="wanted",
        test="tests/unit/engine/test_commit_upsert.py -k each_compression",
    ),
    Guard(
        name="settings: a table's modes of statistics are read before a row is written",
        before="        _refuse_metrics(table, properties)\n",
        after="",
        test="tests/unit/sinks/iceberg/test_data_file.py -k unknown_statistics",
    ),
    Guard(
        name="settings: a table's name mapping is read before a row is computed",
        before="            names_of(self._name, table.metadata)\n",
        after="            pass\n",
        test="tests/unit/engine/test_commit_upsert.py -k broken_name_mapping",
    ),
    Guard(
        name="storage: objects are deleted many at a time",
        before="not root.startswith(_S3) or len(uris) == 1:\n",
        after="True:\n",
        test="tests/unit/storage/test_objects.py -k delete",
    ),
    Guard(
        name="storage: a range of names ends where the next one begins",
        before="names, is_last = names[: bisect_left(names, until)], True\n",
        after="is_last = True\n",
        test=_LONG,
    ),
    Guard(
        name="storage: a range that has more names is listed on",
        before="                todo.append((next_after, until))\n",
        after="                pass\n",
        test=_LONG,
    ),
    Guard(
        name="storage: names in another order are not listed by ranges",
        before="    if any(a >= b for a, b in pairwise([after, *names])):\n",
        after="    if not names:\n",
        test=_LONG,
    ),
    Guard(
        name="storage: names that begin in another order are listed one after the other",
        before="is_sorted = is_sorted and all(a < b for a, b in pairwise(names))\n",
        after="pass\n",
        test=_LONG,
    ),
    Guard(
        name="storage: a directory bucket is listed one name after the other",
        before=' and not root.rstrip("/").endswith(_DIRECTORY_BUCKET)\n',
        after="\n",
        test=_LONG,
    ),
    Guard(
        name="uploads: parts that are under way arrive before the abort",
        before="            self._await_arrival()\n",
        after="",
        test="tests/unit/storage/test_upload.py",
    ),
    Guard(
        name="storage: an object of another size is not the upload that had no answer",
        before='        return bool(found["size"] == self._position)\n',
        after="        return bool(found)\n",
        test=_UPLOADS,
    ),
    Guard(
        name="storage: an upload that has landed without an answer is no error",
        before="            if not self._is_there():\n                raise\n",
        after="            raise\n",
        test=_UPLOADS,
    ),
    Guard(
        name="storage: no part is sent after one that failed",
        before="        if self._error or self._is_abandoned:\n",
        after="        if self._is_abandoned:\n",
        test=_UPLOADS,
    ),
    Guard(
        name="storage: bytes that do not fit their tag are read again",
        before="if tag is None else _md5(data) == tag[1]\n",
        after="if tag is None else True\n",
        test=_ANSWERS,
    ),
    Guard(
        name="storage: bytes that no tag vouches for must arrive twice",
        before="        fits = not is_sure if tag is None else ",
        after="        fits = tag is None or ",
        test=_ANSWERS,
    ),
    Guard(
        name="calls: a wait that would outlast patience is not begun",
        before="            if since_s + asked > seconds_of(self.patience):\n",
        after="            if since_s > seconds_of(self.patience):\n",
        test=_RETRIES,
    ),
    Guard(
        name="calls: each refusal lengthens the wait",
        before="        calls = max(attempts + refusals, 1)\n",
        after="        calls = max(attempts, 1)\n",
        test=_RETRIES,
    ),
    Guard(
        name="calls: refusals are counted",
        before="self._loop.time() - began, refusals)\n",
        after="self._loop.time() - began)\n",
        test="tests/unit/worker/test_calls.py",
    ),
)
