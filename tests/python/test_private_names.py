"""Private names of torch are used in one module, which says so if this torch lacks one."""

import ast
import pathlib

import pytest
import wherry

torch = pytest.importorskip(
    "torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt"
)

if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from wherry.torch import _private  # noqa: E402

FOLDER = pathlib.Path(_private.__file__).parent
OWN = ("self", "cls", "super()")


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def private_names(tree):
    """Names of torch with an underscore, and private attributes of objects of other classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if any(map(is_private, one.name.split("."))))
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "torch":
            names = [*node.module.split("."), *(one.name for one in node.names)]
            yield from (f"{node.module}: {one}" for one in names if is_private(one))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            base = ast.unparse(node.value)
            if base not in OWN and not is_private(base):
                yield ast.unparse(node)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_in_one_module(path):
    found = list(private_names(ast.parse(path.read_text())))
    if path.name == "_private.py":
        assert found  # The search itself works.
    else:
        assert not found


def test_this_torch_has_all():
    for name in _private._MODULES:
        assert getattr(_private, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _private.nothing


def test_a_name_that_is_missing(monkeypatch):
    from torch.distributed.tensor import _dtensor_spec
    from wherry import _nodes
    from wherry.torch import _distributed

    _private.__dict__.pop("TensorMeta", None)
    monkeypatch.delattr(_dtensor_spec, "TensorMeta")
    mesh = _nodes.Mesh("cpu", (1,), (0,), None)
    place = _nodes.Placement(_nodes.REPLICATE, 0, 0, None)
    node = _nodes.DTensor(torch.zeros(2), mesh, (place,), 11, 0, (2,), (1,))
    with pytest.raises(
        wherry.errors.Unsupported,
        match=rf"^torch {torch.__version__[:4]}.* has no torch.*_dtensor_spec.TensorMeta, which",
    ):
        _distributed.make_dtensor(node, torch.float32, _distributed.Meshes(None, 0))
    with pytest.raises(wherry.errors.Unsupported, match=r"has no torch\.Tensor\._gone, which"):
        _private._read(torch.Tensor, "_gone")
