"""A PyIceberg FileIO on our storage, so that no storage call goes another way.

PyIceberg finds it by the dotted path in `py-io-impl`. Metadata, manifests and manifest lists are
small and are held as whole objects; data files are written through `open_sink`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from holdfast.storage import credentials
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import Storage, StorageError

_Result = TypeVar("_Result")

FILE_IO_PATH = "holdfast.sinks.iceberg.file_io.HoldfastFileIO"


class _Input(InputFile):
    def __init__(self, storage: Storage, location: str) -> None:
        super().__init__(location)
        self._storage = storage

    def __len__(self) -> int:
        return _translated(lambda: self._storage.size(self.location))

    def exists(self) -> bool:
        return _exists(self._storage, self.location)

    # The signatures are PyIceberg's.
    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002
        return io.BytesIO(_translated(lambda: self._storage.get_sure(self.location)))


class _Output(OutputFile):
    def __init__(self, storage: Storage, location: str) -> None:
        super().__init__(location)
        self._storage = storage
        self._size: int | None = None

    def __len__(self) -> int:
        if self._size is not None:  # Written here: asking the store would cost a request.
            return self._size
        return _translated(lambda: self._storage.size(self.location))

    def exists(self) -> bool:
        return _exists(self._storage, self.location)

    def to_input_file(self) -> InputFile:
        return _Input(self._storage, self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        return _Buffer(self)

    def keep(self, data: bytes) -> None:
        _translated(lambda: self._storage.put(self.location, data))
        self._size = len(data)


class _Buffer(io.BytesIO):
    """Collects the bytes and sends them as one object when it is closed without an error."""

    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()  # First: the garbage collector must not retry a failed close.
        self._output.keep(data)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            super().close()


class HoldfastFileIO(FileIO):
    """PyIceberg's access to storage, through Holdfast's own."""

    def __init__(
        self, properties: Properties = EMPTY_DICT, vendor: credentials.Vendor | None = None
    ) -> None:
        """Keep the properties; connections are opened when used.

        Args:
            properties: Properties, including storage options.
            vendor: What supplies keys, if the properties hold none.
        """
        super().__init__(properties)
        self.vendor = vendor
        options = {name: str(value) for name, value in properties.items() if value is not None}
        # A catalog's server and a table add their own properties, which must not name code. The
        # user's own environment may, on the driver and on executors.
        options.pop(credentials.OPTION, None)
        self.storage: Storage = ObjectStorage(options, vendor)

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _Input(self.storage, location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return _Output(self.storage, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        uri = location if isinstance(location, str) else location.location
        _translated(lambda: self.storage.delete([uri]))


def file_bytes(io: FileIO, path: str) -> bytes:
    """Return a whole file."""
    with io.new_input(path).open(seekable=False) as stream:
        return stream.read()


def _exists(storage: Storage, location: str) -> bool:
    try:
        _translated(lambda: storage.size(location))
    except FileNotFoundError:
        return False
    return True


def _translated(action: Callable[[], _Result]) -> _Result:
    """Translate storage errors into those that PyIceberg expects.

    Raises:
        OSError: Storage failed.
    """
    try:
        return action()
    except StorageError as error:
        raise OSError(str(error)) from error
