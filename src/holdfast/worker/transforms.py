"""Transforms: the user's expensive step, one batch at a time.

Seeing one batch at a time is what lets Holdfast know which rows are done. A transform may be a
plain function or an object that is built once in each worker process.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Transform = Callable[[pa.RecordBatch], Any]

# Built objects of this worker process, most recently used last. PySpark reuses its worker
# processes over many tasks, and each task unpickles a copy of its own.
_BUILT: OrderedDict[str, Transform] = OrderedDict()
_BUILT_MAX = 4


class TransformOutputError(TypeError):
    """The transform returned something that is no rows."""


@dataclass(frozen=True)
class PerWorker:
    """A transform that is built once in each worker process. Made by `per_worker`."""

    factory: Callable[..., Transform]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    # Every unpickled copy carries it, so all tasks of a process find the same object.
    token: str

    def build(self) -> Transform:
        """Return this process's object; make it at the first call.

        Runs on an executor.
        """
        if self.token not in _BUILT:
            _BUILT[self.token] = self.factory(*self.args, **self.kwargs)
            while len(_BUILT) > _BUILT_MAX:
                _BUILT.popitem(last=False)
        _BUILT.move_to_end(self.token)
        return _BUILT[self.token]


# The arguments are the factory's own.
def per_worker(factory: Callable[..., Transform], *args: Any, **kwargs: Any) -> PerWorker:  # noqa: ANN401
    """Build a transform once in each worker process, not once per task or batch.

    Runs on the driver; only the factory and its arguments travel. Use it for models, clients
    and anything else that is large or slow to make.

    Args:
        factory: A class or function; what it returns is called with each batch.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.
    """
    return PerWorker(factory=factory, args=args, kwargs=kwargs, token=uuid.uuid4().hex)


def ready(transform: Transform | PerWorker | None) -> Transform:
    """Return the function to call with each batch. Runs on an executor."""
    if transform is None:
        return lambda batch: batch
    return transform.build() if isinstance(transform, PerWorker) else transform


def output_batches(output: object) -> Iterator[pa.RecordBatch]:
    """Yield what a transform returned as record batches.

    Args:
        output: A RecordBatch, a Table, a dict of columns, or an iterable of these.

    Raises:
        TransformOutputError: It is none of them.
    """
    if isinstance(output, pa.RecordBatch):
        yield output
    elif isinstance(output, pa.Table):
        yield from output.to_batches()
    elif isinstance(output, Mapping):
        if not output:
            raise TransformOutputError("it returned a dict without columns")
        yield from pa.table(dict(output)).to_batches()
    elif isinstance(output, Iterable) and not isinstance(output, str | bytes):
        for one in output:
            if not isinstance(one, pa.RecordBatch | pa.Table | Mapping):
                # A DataFrame or an array can be iterated over, but not for rows: name it whole.
                container = isinstance(output, list | tuple | Iterator)
                raise TransformOutputError(_complaint(one if container else output))
            yield from output_batches(one)
    else:
        raise TransformOutputError(_complaint(output))


def _complaint(output: object) -> str:
    return (
        f"it returned {type(output).__name__}, not a pyarrow RecordBatch, a Table, a dict of "
        "columns, or an iterable of these"
    )
