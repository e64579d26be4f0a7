"""The codec without torch: a round trip of every type in docs/python-types.md. Errors for refused
types name the path and what to do."""

import array
import collections
import dataclasses
import decimal
import enum
import functools
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections import Counter, OrderedDict, defaultdict, deque

import codec_types as t
import pytest
from same_state import assert_same

from rehearse import core

from wherry import _types
from wherry.errors import Malformed, Unsupported
from wherry._codec import Codec


def there_and_back(value, codec=None):
    codec = codec or Codec()
    return core.restore(core.build(value, codec), codec)


def type_name(value, codec=None):
    return (codec or Codec()).encode(value).type_name


def with_attributes(value, **attributes):
    vars(value).update(attributes)
    return value


ROWS = [
    ({(1, "a"): 1, "b": 2, None: 3}, "python.items"),
    ({t.Color.RED: [1]}, "python.items"),
    ({"\ud800": "x"}, "python.items"),
    ({1.5: 1, 2**90: 2, b"k": 3, True: 4, None: 5}, None),
    (OrderedDict(b=1, a=2), "python.OrderedDict"),
    (OrderedDict({(1, 2): 3}), "python.OrderedDict"),
    (
        with_attributes(
            OrderedDict(a=1), _metadata=OrderedDict(z={"version": 2}, a={"version": 1})
        ),
        'python.OrderedDict {"attributes":{"_metadata":{"$":"OrderedDict","items":[["z",{"version":2}],["a",{"version":1}]]}}}',
    ),
    (defaultdict(list, a=[1]), 'python.defaultdict {"factory":"list"}'),
    (defaultdict(None, a=1), "python.defaultdict"),
    (Counter("abca"), 'python.dict {"class":"collections.Counter"}'),
    (t.Registry(x=1), 'python.dict {"class":"codec_types.Registry"}'),
    (with_attributes(t.Registry(x=1), n=(1, {"b": 2, "a": float("inf")})), None),
    (t.OrderedSub(b=1, a=2), 'python.OrderedDict {"class":"codec_types.OrderedSub"}'),
    (
        t.DefaultSub(int, a=2),
        'python.defaultdict {"class":"codec_types.DefaultSub","factory":"int"}',
    ),
    (t.Pair(1, [2]), 'python.namedtuple {"class":"codec_types.Pair"}'),
    (t.Typed("a", {"x": t.Typed("b")}), 'python.namedtuple {"class":"codec_types.Typed"}'),
    (t.Config(0.1, [t.Config(0.2)]), 'python.dataclass {"class":"codec_types.Config"}'),
    (
        with_attributes(t.Config(0.1), cached=[1, 2]),
        'python.dataclass {"class":"codec_types.Config"}',
    ),
    (t.Frozen((1, 2)), 'python.dataclass {"class":"codec_types.Frozen"}'),
    (t.Slotted(1, {"a": None}), 'python.dataclass {"class":"codec_types.Slotted"}'),
    (t.Outer.Data([1]), 'python.dataclass {"class":"codec_types.Outer.Data"}'),
    (t.Color.GREEN, 'python.enum {"class":"codec_types.Color"}'),
    (t.Number.TWO, 'python.enum {"class":"codec_types.Number"}'),
    (t.Outer.Inner.X, 'python.enum {"class":"codec_types.Outer.Inner"}'),
    (t.Mode.READ | t.Mode.RUN, 'python.flag {"class":"codec_types.Mode"}'),
    (t.Mode(0), 'python.flag {"class":"codec_types.Mode"}'),
    ({3, 1, 2}, "python.set"),
    ({1, "a", None}, "python.set"),
    (frozenset({"b", "a"}), "python.frozenset"),
    (deque([1, [2]]), "python.deque"),
    (deque([1], 7), 'python.deque {"maxlen":7}'),
    (range(3, 30, 4), "python.range"),
    (range(-(2**70), 2**70), "python.range"),
    (slice(None, 3, -1), "python.slice"),
    (slice("a", (1, 2)), "python.slice"),
    ("\ud800 and \udfff", "python.str"),
    (bytearray(b"bytes"), "python.bytearray"),
    (bytearray(), "python.bytearray"),
]


@pytest.mark.parametrize(
    "value, name", ROWS, ids=[f"{type(value).__name__}-{i}" for i, (value, _) in enumerate(ROWS)]
)
def test_there_and_back(value, name):
    assert_same(value, there_and_back(value))
    assert_same({"a": [value, value]}, there_and_back({"a": [value, value]}))
    if name is not None:
        assert type_name(value) == name


def test_slots_of_a_dict():
    value = t.SlotDict(a=1)
    value.note = ["x"]
    received = there_and_back(value)
    assert type(received) is t.SlotDict and received == {"a": 1} and received.note == ["x"]


def test_attributes_are_not_shared():
    sent = with_attributes(OrderedDict(a=1), _metadata={"x": [1]})
    codec = Codec()
    one, other = there_and_back(sent, codec), there_and_back(sent, codec)
    one._metadata["x"].append(2)
    assert other._metadata == {"x": [1]} == sent._metadata


def test_order_is_kept():
    sent = OrderedDict(a=1, b=2, c=3)
    sent.move_to_end("a")
    assert list(there_and_back(sent)) == ["b", "c", "a"]
    assert list(there_and_back({(2,): 1, (1,): 2})) == [(2,), (1,)]


def test_equal_sets_give_equal_bytes():
    script = """
        from codec_types import Color
        from rehearse import core
        from wherry._codec import Codec
        words = [f"word{i}" for i in range(50)]
        nested = [frozenset(words[i : i + 3]) for i in range(9)]
        mixed = [*words, *range(9), None, 1.5, (1, "a"), (1, ("b", None)), *nested, Color.RED, b"", (frozenset(words),)]
        for items in (words, mixed):
            one, other = (core.dump(core.build(set(order), Codec())) for order in (items, items[::-1]))
            assert one == other
            print(one)
    """
    texts = {run_without([], script, PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)}
    assert len(texts) == 1


def test_paths_lead_through_objects():
    with pytest.raises(Unsupported) as caught:
        core.build({"a": OrderedDict(b=t.Config(1.0, [t.Pair(0, print)]))}, Codec())
    assert caught.value.path == "a.b.layers[0].right"
    assert "at 'a.b.layers[0].right': " in str(caught.value)


def test_a_string_of_json_in_names():
    for value in (
        {"$": 1},
        {"b": 1, "a": 2},
        {1: 2},
        [None, True, -0.0, 1e300],
        (),
        b"\0",
        float("nan"),
        "\ud800",
        {"": {}},
    ):
        made = _types.from_json(json.loads(json.dumps(_types.to_json(value), sort_keys=True)))
        assert type(made) is type(value) and repr(made) == repr(value)


# ---- values that are refused ----


class Weird:
    pass


def local_class():
    @dataclasses.dataclass
    class Local:
        x: int = 1

    return Local()


def local_enum():
    return enum.Enum("Hidden", "A").A


class ListSub(list):
    pass


@dataclasses.dataclass
class Failure(Exception):
    code: int = 1


def namedtuple_with_attribute():
    class Sub(t.Pair):
        pass

    Sub.__module__, Sub.__qualname__ = __name__, "PairSub"
    globals()["PairSub"] = Sub
    return with_attributes(Sub(1, 2), note=1)


def unset_field():
    made = t.Slotted(1, 2)
    del made.b
    return made


REFUSED = [
    (lambda: print, "function", "send their data"),
    (lambda: Weird(), "Weird", "send its contents as a dict"),
    (lambda: Weird, "type", "functions and classes"),
    (lambda: sys, "module", "docs/python-types.md"),
    (lambda: threading.Lock(), "lock", "docs/python-types.md"),
    (lambda: decimal.Decimal(1), "Decimal", "docs/python-types.md"),
    (lambda: t.Subclassed(3), "Subclassed", "send int(value)"),
    (lambda: ListSub([1]), "ListSub", "send list(value)"),
    (lambda: functools.partial(print), "partial", "functions"),
    (lambda: (i for i in ()), "generator", "docs/python-types.md"),
    (local_class, "Local", "define the class at the top level of its module"),
    (local_enum, "Hidden", "define the class at the top level of its module"),
    (lambda: defaultdict(lambda: 1), "defaultdict", "send dict(value)"),
    (lambda: with_attributes(OrderedDict(), hook=print), "OrderedDict", "'hook'"),
    (lambda: with_attributes(OrderedDict(), keys=1), "OrderedDict", "'keys'"),
    (lambda: with_attributes(t.Config(1.0), __len__=1), "Config", "'__len__'"),
    (lambda: Failure(), "Failure", "inherits from a builtin type"),
    (namedtuple_with_attribute, "PairSub", "'note'"),
    (unset_field, "Slotted", "field without a value"),
    (lambda: array.array("u", "ab"), "array.array", "format is 'w'"),
]


@pytest.mark.parametrize(
    "make, name, way_out", REFUSED, ids=[f"{name}-{i}" for i, (_, name, _) in enumerate(REFUSED)]
)
def test_refused(make, name, way_out):
    value = {"x": [0, make()]}
    with pytest.raises(Unsupported) as caught:
        core.build(value, Codec())
    text = str(caught.value)
    assert caught.value.path == "x[1]" and text.startswith("at 'x[1]': ")
    assert name in text and way_out in text and "allow_pickle=True on both sides" in text


def test_object_with_a_state():
    class Model:
        def state_dict(self):
            return {}

    with pytest.raises(Unsupported, match=r"send value\.state_dict\(\)"):
        core.build([Model()], Codec())


# Pickles.


def test_pickle_on_both_sides():
    codec = Codec(allow_pickle=True)
    sent = {
        "d": decimal.Decimal("1.5"),
        "f": print,
        "s": t.Subclassed(3),
        "p": functools.partial(int, "7"),
    }
    received = there_and_back(sent, codec)
    assert (
        received["d"] == sent["d"]
        and received["f"] is print
        and type(received["s"]) is t.Subclassed
    )
    assert received["p"]() == 7


def test_pickle_needs_both_sides():
    state = core.build({"a": [decimal.Decimal(1)]}, Codec(True))
    with pytest.raises(Unsupported, match="allow_pickle=True") as caught:
        core.restore(state, Codec())
    assert caught.value.path == "a[0]"


def test_pickle_that_fails():
    with pytest.raises(Unsupported, match="pickling it failed too") as caught:
        core.build({"a": threading.Lock()}, Codec(True))
    assert caught.value.path == "a"
    with pytest.raises(Malformed):
        Codec(True).decode("python.pickle", b"junk")


def test_types_that_travel_are_not_pickled():
    codec = Codec(True)
    for value, name in ROWS:
        if name is not None:
            assert not codec.encode(value).type_name.startswith("python.pickle")


# ---- classes at the receiver ----


def test_class_that_is_not_there():
    with pytest.raises(Unsupported, match="import the module"):
        Codec().check('python.dataclass {"class":"xml.sax.nothing.Here"}')
    assert "xml.sax.nothing" not in sys.modules


def test_class_of_another_kind():
    for name in (
        "python.namedtuple",
        "python.dataclass",
        "python.enum",
        "python.flag",
        "python.OrderedDict",
    ):
        with pytest.raises(Malformed, match="both sides must run the same version"):
            Codec().check(_types.format_type_name(name, **{"class": "builtins.str"}))


def test_class_under_another_name():
    # OrderedDict is found in other modules too, but only its own name counts.
    with pytest.raises(Unsupported):
        Codec().check('python.dict {"class":"codec_types.OrderedDict"}')


def test_fields_that_differ():
    payload = {"rate": 1.0, "layers": []}
    with pytest.raises(Malformed, match="lacks .*seen"):
        Codec().decode('python.dataclass {"class":"codec_types.Config"}', payload)
    with pytest.raises(Malformed, match="lacks .*right.* has .*wrong"):
        Codec().decode('python.namedtuple {"class":"codec_types.Pair"}', {"left": 1, "wrong": 2})
    with pytest.raises(Malformed, match="no member"):
        Codec().decode('python.enum {"class":"codec_types.Color"}', "BLUE")


@pytest.mark.parametrize(
    "name, payload",
    [
        ("python.items", [((1,), "a")]),
        ("python.set", [1, 1]),
        ("python.frozenset", ["a", "a"]),
        ("python.range", (0, 5, 0)),
        ("python.range", (0, 5)),
        ("python.str", b"\xff"),
        ('numpy.scalar {"dtype":"float32"}', bytes(8)),
        ('numpy.scalar {"dtype":"float32"}', b""),
        ('numpy.scalar {"dtype":"object"}', bytes(8)),
        ('python.defaultdict {"factory":"eval"}', {}),
        ('python.OrderedDict {"factory":"list"}', {}),
        ('python.deque {"maxlen":-1}', []),
    ],
)
def test_payloads_that_are_refused(name, payload):
    with pytest.raises(Malformed):
        Codec().decode(name, payload)


def test_unknown_names():
    with pytest.raises(Unsupported, match="update wherry"):
        Codec().check("python.future")
    with pytest.raises(Unsupported, match="import torch"):
        Codec().check("torch.sparse_coo")
    with pytest.raises(Unsupported, match="update wherry"):
        Codec().check('python.set {"future":1}')


def test_no_code_of_the_class_runs():
    for cls, name, payload in (
        (t.Wary, 'python.dict {"class":"codec_types.Wary"}', {"a": 1}),
        (t.WaryData, 'python.dataclass {"class":"codec_types.WaryData"}', {"x": 5}),
    ):
        cls.calls.clear()
        made = Codec().decode(name, payload)
        assert type(made) is cls and not cls.calls
    assert made.x == 5


def test_without_torch_its_types_are_plain():
    codec = Codec()
    assert codec.decode("torch.Size", (2, 3)) == (2, 3)
    assert codec.decode("torch.dtype", "torch.float32") == "torch.float32"
    assert codec.decode("torch.device", "cuda:1") == "cuda:1"


# ---- a process without NumPy ----


def run_without(modules, script, **environment):
    """Runs a script in a process in which modules cannot be imported."""
    head = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in modules)
    head += f"sys.path[:0] = {sys.path!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_numpy():
    run_without(
        ["numpy", "torch"],
        """
        import array, collections
        import wherry
        from rehearse import core
        from wherry._codec import Codec
        codec = Codec()
        value = {"o": collections.OrderedDict(a=1), "s": {1}, "c": 1j}
        assert core.restore(core.build(value, codec), codec) == value
        source = array.array("f", [1, 2, 3])
        state = core.build({"x": source}, codec)
        try:
            core.restore(state, codec)
            raise SystemExit("not refused")
        except wherry.errors.Unsupported as error:
            assert "pip install numpy, or receive in place with into=" in str(error), error
        target = array.array("f", [0, 0, 0])
        received = core.restore(state, codec, core.build({"x": target}, codec.for_target()))
        assert received["x"] is target and target == source
        """,
    )


def test_standard_library_only_by_name():
    assert (
        _types.full_name(collections.OrderedDict) == "collections.OrderedDict"
        and _types.full_name(int) == "int"
    )
    assert pickle.loads(pickle.dumps(t.Pair(1, 2))) == t.Pair(
        1, 2
    )  # The process can find the classes of the tests.
