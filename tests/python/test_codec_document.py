"""Compares docs/python-types.md with the codecs: it must have every type name, and each argument of
it."""

import pathlib
import re

import pytest
from test_codec import ROWS

from wherry import _types
from wherry._codec import Codec
from wherry._types import FACTORIES

DOCUMENT = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "python-types.md").read_text(
    encoding="utf-8"
)


def documented():
    """The tables as {name: arguments}. `attributes` is described in the text below the tables."""
    found = {}
    for line in DOCUMENT.splitlines():
        cells = line.split(" | ")
        if line.startswith("| ") and len(cells) > 2:
            names = re.findall(r"`((?:python|numpy|torch)\.\w+)`", cells[1])
            arguments = re.findall(r"`([a-z_]+)`", cells[1])
            if cells[1] == "the same" and "`torch.dtype`" in cells[0]:
                names = re.findall(r"`(torch\.\w+)`", cells[0])
            for name in names:
                found.setdefault(name, set()).update(arguments)
    for name in re.search(r"`attributes` \(of (.*?)\)", DOCUMENT).group(1).split(", "):
        found[name.strip("`")].add("attributes")
    return found


def codecs():
    yield Codec()
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    from wherry.torch._codec import TorchCodec

    yield TorchCodec()


def test_names():
    known = {name for codec in codecs() for name in codec._makers}
    if any(type(codec).__name__ == "TorchCodec" for codec in codecs()):
        assert set(documented()) == known
    else:
        assert set(documented()) >= known


def test_arguments():
    for codec in codecs():
        for value, _ in ROWS:
            encoded = codec.encode(value)
            if hasattr(encoded, "type_name"):
                name, arguments = _types.parse_type_name(encoded.type_name)
                assert set(arguments) <= documented()[name], name


def test_unknown_arguments_are_refused():
    for codec in codecs():
        for name in codec._makers:
            with pytest.raises(Exception, match="does not know") as caught:
                codec.check(name + ' {"future":1}')
            assert type(caught.value).__name__ == "Unsupported"


def test_factories():
    row = next(line for line in DOCUMENT.splitlines() if line.startswith("| `defaultdict`"))
    named = re.search(r"Factories: (.*?) or None", row).group(1).split(", ")
    assert set(named) == set(FACTORIES)


def test_the_example():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
    )
    from wherry.torch._codec import TorchCodec

    name = TorchCodec().encode(torch.nn.Linear(1, 1).state_dict()).type_name
    assert f"`{name}`" in DOCUMENT
