"""A hostile sender: whatever names and payloads it sends, a codec gives a value or one of Wherry's
errors, and runs nothing."""

import builtins
import json
import random
import sys

import codec_types  # noqa: F401  classes that names can find
import numpy as np
import pytest

import wherry
from wherry import _types
from wherry._codec import Codec

CLASSES = [
    *"Config Frozen Slotted Pair Typed Color Mode Number Registry SlotDict OrderedSub DefaultSub Wary WaryData Subclassed".split(),
    *"Outer Outer.Data Outer.Inner Outer.Missing".split(),
]
CLASSES = [f"codec_types.{name}" for name in CLASSES]
CLASSES += "collections.Counter collections.OrderedDict builtins.dict builtins.type builtins.object os.system os.path.join".split()
CLASSES += "subprocess.Popen pickle.Unpickler wherry._codec.Codec wherry._nodes.Memory antigravity.fly ..".split()
KEYS = [
    "class",
    "factory",
    "attributes",
    "maxlen",
    "dtype",
    "size",
    "coalesced",
    "requires_grad",
    "",
    "$",
    "__class__",
]
WORDS = [
    *[
        "",
        "a",
        "keys",
        "__class__",
        "__init__",
        "__dict__",
        "__reduce__",
        "rate",
        "x",
        "left",
        "list",
        "eval",
        "note",
    ],
    *[
        "float32",
        "datetime64[ns]",
        "datetime64[999999999999999Y]",
        "bfloat16",
        "O",
        "S3",
        "V8",
        "i4,f8",
        "tuple",
        "OrderedDict",
    ],
    *[
        "torch.float32",
        "cpu",
        "cuda:99",
        "children",
        "context",
        "tensors",
        "indices",
        "values",
        "stride",
        "crow_indices",
    ],
]


class Inventor:
    """Random names and payloads that resemble good ones closely enough to pass the first checks."""

    def __init__(self, seed, names, leaves=(), classes=()):
        self.random = random.Random(seed)
        self.names = names
        self.classes = [*CLASSES, *classes]
        self.leaves = list(leaves)

    def json(self, depth=3):
        r = self.random
        kind = r.randrange(8 if depth else 6)
        if kind < 2:
            return r.choice([*self.classes, *WORDS])
        if kind < 6:
            return r.choice([None, True, 0, -1, 7, 2**70, 1.5, r.choice(WORDS)])
        if kind == 6:
            return [self.json(depth - 1) for _ in range(r.randrange(4))]
        made = {r.choice([*KEYS, *WORDS]): self.json(depth - 1) for _ in range(r.randrange(4))}
        if r.random() < 0.5:
            made["$"] = r.choice(["float", "tuple", "bytes", "dict", "OrderedDict", "no", 1])
            made[r.choice(["value", "items"])] = self.json(depth - 1)
        return made

    def name(self):
        r = self.random
        name = r.choice(self.names)
        if r.random() < 0.2:
            return name
        arguments = {key: self.json() for key in r.sample(KEYS, r.randrange(3))}
        if r.random() < 0.7:
            arguments["class"] = r.choice(self.classes)
        text = json.dumps(arguments, separators=(",", ":"))
        if r.random() < 0.1:
            at = r.randrange(len(text))
            text = text[:at] + r.choice(["", "}", '"', "\ud800", "NaN", "[" * 9]) + text[at + 1 :]
        return f"{name} {text}"

    def payload(self, depth=3):
        r = self.random
        kind = r.randrange(10 if depth else 7)
        if kind < 5:
            return r.choice([None, True, 0, -5, 2**80, 1.5, 1j, b"", b"abc", *WORDS, *self.leaves])
        if kind < 7:
            return r.choice(
                [
                    {},
                    [],
                    (),
                    (1, 2, 3),
                    (0, 5, 0),
                    [1, 1],
                    [("a", 1), ("a", 2)],
                    [([], 1)],
                    *self.leaves,
                ]
            )
        items = [self.payload(depth - 1) for _ in range(r.randrange(4))]
        if kind == 7:
            return items
        if kind == 8:
            return tuple(items)
        return {r.choice([*WORDS, 1, None]): item for item in items}


def attack(codec, inventor, rounds):
    """Decodes invented documents. Returns how many of them were decoded, and the names of the
    errors."""
    made, errors = 0, set()
    for _ in range(rounds):
        name, payload = inventor.name(), inventor.payload()
        try:
            codec.decode(name, payload)
            made += 1
        except wherry.Error as error:
            errors.add(type(error).__name__)
            assert len(str(error)) < 1000
    return made, errors


@pytest.fixture
def watched(monkeypatch):
    """Nothing is imported, opened or executed while this is in use."""
    modules = set(sys.modules)

    def refuse(*args, **kwargs):
        raise BaseException(f"called with {args!r:.200}")

    def no_import(name, *args, **kwargs):
        if name not in sys.modules:
            raise BaseException(f"imports {name}")
        return original(name, *args, **kwargs)

    original = builtins.__import__
    for name in ("exec", "eval", "open"):
        monkeypatch.setattr(builtins, name, refuse)
    monkeypatch.setattr(builtins, "__import__", no_import)
    yield
    monkeypatch.undo()
    new = set(sys.modules) - modules
    assert not new, f"imported {new}"


def test_random_names_and_payloads(watched):
    codec = Codec()
    leaves = [np.zeros(3), np.zeros((2, 2), "uint8"), np.zeros(2, "int64"), np.float32(1)]
    made, errors = attack(codec, Inventor(1, list(codec._makers), leaves), 60000)
    assert made > 500 and errors >= {"Malformed", "Unsupported"}
    assert not codec_types.Wary.calls and not codec_types.WaryData.calls
    assert len(codec._known) <= 4096


def test_every_name_with_every_payload(watched):
    codec = Codec()
    payloads = [
        None,
        1,
        "a",
        b"b",
        1.5,
        [],
        (),
        {},
        [[]],
        ((),),
        {"a": 1},
        (1, 2),
        (1, 2, 0),
        [(1,)],
        [1, 1],
        np.zeros(2),
    ]
    for name in codec._makers:
        for text in (
            name,
            name + " {}",
            name + " ",
            name + " []",
            name + " {",
            f'{name} {{"class":1}}',
            f'{name} {{"a":1,"a":2}}',
        ):
            for payload in payloads:
                try:
                    codec.decode(text, payload)
                except wherry.Error:
                    pass


def test_deep_json():
    for text in ("[" * 100000, '{"attributes":' * 50000, '{"class":' + "1" * 100000 + "}"):
        with pytest.raises(wherry.Error):
            Codec().check("python.OrderedDict " + text)
    nested = "[" * 900 + "]" * 900
    with pytest.raises(wherry.Error):
        Codec().decode(f'python.OrderedDict {{"attributes":{{"keys":{nested}}}}}', {})


def test_attributes_that_are_refused():
    codec = Codec()
    for name in (
        "keys",
        "__class__",
        "__dict__",
        "__getattribute__",
        "update",
        "no name",
        "fromkeys",
        "",
    ):
        text = _types.format_type_name("python.OrderedDict", attributes={name: 1})
        with pytest.raises(wherry.errors.Malformed, match="cannot have"):
            codec.decode(text, {})
    for name in ("__class__", "__init__", "calls()"):
        with pytest.raises(wherry.errors.Malformed):
            codec.decode(
                'python.dataclass {"class":"codec_types.Config"}',
                {"rate": 1, "layers": 2, "seen": 3, name: 4},
            )
    assert vars(
        codec.decode(_types.format_type_name("python.OrderedDict", attributes={"fine": [1]}), {})
    ) == {"fine": [1]}


def test_modules_with_their_own_getattr():
    class Trap(type(sys)):
        def __getattr__(self, name):
            raise BaseException(f"asked for {name}")

    sys.modules["codec_trap"] = Trap("codec_trap")
    try:
        with pytest.raises(wherry.errors.Unsupported):
            Codec().check('python.dataclass {"class":"codec_trap.Anything"}')
    finally:
        del sys.modules["codec_trap"]


def test_many_names_are_not_kept():
    codec = Codec()
    for number in range(10000):
        codec.check(f'python.deque {{"maxlen":{number}}}')
    assert len(codec._known) <= 4096
