"""Staging: moves tensors through host memory if no lane supports their device (XPU, MPS, ...).

The library sees host memory instead. Torch copies between that memory and the device, at most 128
MiB at once: many small storages share a bucket and are copied together, and a large storage is
copied in several steps. The host memory is kept until the transfer ends.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from wherry.errors import NoMemory, Unsupported

logger = logging.getLogger("wherry")

BUCKET_BYTES = 128 << 20

#: Alignment of storages in a bucket: the size of a cache line, a multiple of all element sizes.
_ALIGNMENT = 64


class StagedStorage:
    """A storage on a device, and the host memory that replaces it during a transfer."""

    def __init__(self, host: torch.Tensor, on_device: torch.Tensor) -> None:
        self.host = host
        self.on_device = on_device  # the whole storage, as bytes

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def __len__(self) -> int:
        return len(self.host)


class _Bucket:
    """Host memory for some storages of one device."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        # The system provides pages only when they are written, so unused space costs nothing.
        self._host = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        self._used = 0
        self._storages: list[tuple[int, torch.Tensor]] = []

    def add(self, on_device: torch.Tensor) -> StagedStorage | None:
        """Adds a storage. Returns None if there is no room left."""
        begin = -self._used % _ALIGNMENT + self._used
        if begin + len(on_device) > len(self._host):
            return None
        self._used = begin + len(on_device)
        self._storages.append((begin, on_device))
        return StagedStorage(self._host[begin : self._used], on_device)

    def copy(self, to_host: bool) -> None:
        """Copies the bytes of all storages from the device to the host, or back."""
        if len(self._storages) == 1:  # The storage may be larger than BUCKET_BYTES.
            for at in range(0, self._used, BUCKET_BYTES):
                piece = slice(at, min(at + BUCKET_BYTES, self._used))
                host, device = self._host[piece], self._storages[0][1][piece]
                host.copy_(device) if to_host else device.copy_(host)
            return
        packed = torch.empty(self._used, dtype=torch.uint8, device=self._device)
        parts = [(packed[at : at + len(one)], one) for at, one in self._storages]
        if not to_host:
            packed.copy_(self._host[: self._used])
        for part, storage in parts:
            part.copy_(storage) if to_host else storage.copy_(part)
        if to_host:
            self._host[: self._used].copy_(packed)


class Staging:
    """The staged storages of one call."""

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []
        self._open: dict[torch.device, _Bucket] = {}

    def add(self, storage: Any) -> StagedStorage:
        """Adds the storage of a tensor, and host memory for it. Copies nothing yet."""
        try:
            on_device = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        except (RuntimeError, NotImplementedError) as error:
            raise Unsupported(
                f"torch cannot read memory on {storage.device}: {error}; send value.cpu()"
            ) from error
        return self._place(on_device)

    def new(self, nbytes: int, device: torch.device) -> StagedStorage:
        """Allocates a new storage on a device, and host memory for it."""
        try:
            return self._place(torch.empty(nbytes, dtype=torch.uint8, device=device))
        except RuntimeError as error:
            raise NoMemory(f"torch cannot allocate {nbytes} bytes on {device}: {error}") from error

    def _place(self, on_device: torch.Tensor) -> StagedStorage:
        device = on_device.device
        logger.debug("%d bytes on %s go through host memory", len(on_device), device)
        large = len(on_device) > BUCKET_BYTES
        found = self._open[device].add(on_device) if device in self._open and not large else None
        if found is None:
            bucket = _Bucket(device, len(on_device) if large else BUCKET_BYTES)
            self._buckets.append(bucket)
            if not large:
                self._open[device] = bucket
            found = bucket.add(on_device)
            assert found is not None
        return found

    def fill_host(self) -> None:
        for bucket in self._buckets:
            bucket.copy(to_host=True)

    def fill_device(self) -> None:
        for bucket in self._buckets:
            bucket.copy(to_host=False)
        self._buckets.clear()
        self._open.clear()
