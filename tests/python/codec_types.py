"""Classes of a program, for the tests of the codecs. The codecs find them by their names, so they
must be at the top of a module."""

import dataclasses
import enum
import typing
from collections import OrderedDict, defaultdict, namedtuple


class Color(enum.Enum):
    RED = "red"
    GREEN = (1, 2)


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


Pair = namedtuple("Pair", "left right")


class Typed(typing.NamedTuple):
    name: str
    value: object = None


@dataclasses.dataclass
class Config:
    rate: float
    layers: list = dataclasses.field(default_factory=list)
    seen: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    key: object
    value: object = None


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: object
    b: object


class Outer:
    class Inner(enum.Enum):
        X = 1

    @dataclasses.dataclass
    class Data:
        x: object


class Registry(dict):
    """A dict with attributes."""


class SlotDict(dict):
    __slots__ = ("note",)


class OrderedSub(OrderedDict):
    pass


class DefaultSub(defaultdict):
    pass


class Wary(dict):
    """Records each of its methods that runs. None may run when a value of this class is
    received."""

    calls: typing.ClassVar = []

    def __new__(cls, *args, **kwargs):
        cls.calls.append("__new__")
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        self.calls.append("__init__")
        super().__init__(*args, **kwargs)

    def __setitem__(self, key, value):
        self.calls.append("__setitem__")
        super().__setitem__(key, value)

    def update(self, *args, **kwargs):
        self.calls.append("update")


@dataclasses.dataclass
class WaryData:
    x: int = 0

    calls: typing.ClassVar = []

    def __post_init__(self):
        self.calls.append("__post_init__")

    def __setattr__(self, name, value):
        self.calls.append("__setattr__")
        object.__setattr__(self, name, value)


class Subclassed(int):
    pass
