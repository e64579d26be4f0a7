"""wherry.torch.compat has the names of torch.distributed.checkpoint._pg_transport."""

import inspect

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
)

if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from torch.distributed.checkpoint import _pg_transport as reference  # noqa: E402

from wherry.torch import PGTransport, compat  # noqa: E402


def test_names():
    """compat has all names that torch's module defines. They are torch's own objects, except for
    PGTransport."""
    defined = {
        name
        for name, value in vars(reference).items()
        if getattr(value, "__module__", None) == reference.__name__ and name != "PGTransport"
    }
    assert compat.PGTransport is PGTransport
    assert set(compat.__all__) == defined - {"T"} | {"PGTransport"}
    for name in set(compat.__all__) - {"PGTransport"}:
        assert getattr(compat, name) is getattr(reference, name), name


def test_parameters():
    """Wherry's methods take torch's parameters first, under the same names."""
    for name in ("__init__", "send_checkpoint", "recv_checkpoint"):
        ours = list(inspect.signature(getattr(PGTransport, name)).parameters)
        theirs = list(inspect.signature(getattr(reference.PGTransport, name)).parameters)
        assert ours[: len(theirs)] == theirs, name
