"""Random states from a seed: nested containers with all that the codecs know."""

import itertools
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
from codec_types import (
    Color,
    Config,
    DefaultSub,
    Frozen,
    Mode,
    Number,
    OrderedSub,
    Outer,
    Pair,
    Registry,
    Slotted,
    Typed,
)

SIMPLE = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128".split()


class Maker:
    """Makes one state. `torch` is None if the state must not use torch."""

    def __init__(self, seed, torch=None, extra=()):
        self.random = random.Random(seed)
        self.torch = torch
        self.tensors = []
        self.arrays = []
        self.scalars = [self.integer, self.number, self.text, self.bytes, self.constant, self.enum]
        self.leaves = [
            *self.scalars,
            *self.scalars,
            self.array,
            self.array,
            self.array_view,
            self.numpy_scalar,
            self.other,
        ]
        if torch is not None:
            self.leaves += (
                4 * [self.tensor]
                + 3 * [self.view]
                + [self.parameter, self.sparse, self.torch_small, self.flagged]
            )
        self.leaves += [lambda maker=maker: maker(self) for maker in extra]

    # Scalars.

    def integer(self):
        bits = self.random.choice([1, 8, 31, 32, 63, 64, 65, 200])
        return self.random.choice([1, -1]) * self.random.getrandbits(bits)

    def number(self):
        value = struct.unpack("<d", self.random.randbytes(8))[0]
        return self.random.choice([value, -0.0, float("inf"), 1.5, complex(value, -0.0)])

    def text(self):
        alphabet = "abc._[]{}\"'\\ \n\0é漢😀" + self.random.choice(["", "\ud800"])
        return "".join(self.random.choice(alphabet) for _ in range(self.random.randrange(6)))

    def bytes(self):
        return self.random.randbytes(self.random.randrange(5))

    def constant(self):
        return self.random.choice([None, True, False, (), [], {}])

    def enum(self):
        flags = Mode.READ | Mode.RUN
        return self.random.choice([*Color, *Number, *Mode, flags, Mode(0), *Outer.Inner])

    def other(self):
        r = self.random
        return r.choice(
            [
                bytearray(r.randbytes(r.randrange(9))),
                range(r.randrange(9), r.randrange(9), r.choice([-2, 1, 3])),
                slice(r.choice([None, 1]), r.randrange(9), None),
                {r.randrange(99) for _ in range(r.randrange(5))},
                frozenset({"a", 1, None, (2, "b")}),
            ]
        )

    # NumPy.

    def shape(self, most=4):
        return tuple(
            self.random.choice([0, 1, 2, 3, 5]) for _ in range(self.random.randrange(most))
        )

    def array(self):
        dtype = self.random.choice([*SIMPLE, "datetime64[us]", "timedelta64[D]"])
        shape = self.shape()
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = self.random.randbytes(count)
        if dtype == "bool":
            data = bytes(byte & 1 for byte in data)
        made = np.frombuffer(data, dtype).reshape(shape).copy(self.random.choice("CF"))
        self.arrays.append(made)
        return made

    def array_view(self):
        if not self.arrays:
            return self.array()
        made = self.random.choice(self.arrays)
        for _ in range(self.random.randrange(1, 3)):
            made = self.random.choice([self.transposed, self.sliced, self.broadcast])(made)
        if self.random.random() < 0.2:
            made.flags.writeable = False
        return made

    def transposed(self, array):
        return array.T

    def sliced(self, array):
        if array.ndim == 0:
            return array[...]
        return array[
            tuple(
                slice(self.random.randrange(2), None, self.random.choice([1, 1, 2, -1]))
                for _ in array.shape
            )
        ]

    def broadcast(self, array):
        return np.broadcast_to(array, (2, *array.shape)) if array.ndim < 4 else array[...]

    def numpy_scalar(self):
        dtype = np.dtype(self.random.choice([*SIMPLE, "datetime64[s]"]))
        data = self.random.randbytes(dtype.itemsize) if dtype.kind != "b" else b"\1"
        return np.frombuffer(data, dtype)[0]

    # torch.

    def tensor(self):
        torch = self.torch
        dtype = getattr(torch, self.random.choice(TORCH_DTYPES))
        shape = self.shape()
        size = torch.empty(0, dtype=dtype).element_size()
        data = bytearray(self.random.randbytes(max(1, int(np.prod(shape)) * size)))
        if dtype is torch.bool:
            data = bytearray(byte & 1 for byte in data)
        storage = torch.frombuffer(data, dtype=torch.uint8).clone().untyped_storage()
        made = torch.empty(0, dtype=dtype)
        strides = torch.empty(shape, device="meta").stride()
        made.set_(storage, 0, shape, strides)
        self.tensors.append(made)
        return made

    def view(self):
        torch = self.torch
        if not self.tensors or self.random.random() < 0.1:
            return self.tensor()
        made = self.random.choice(self.tensors)
        for _ in range(self.random.randrange(3)):  # With 0 turns, this is the same tensor again.
            choice = self.random.randrange(5)
            if choice == 0 and made.dim() > 1:
                made = made.transpose(0, -1)
            elif choice == 1 and made.dim() and made.shape[0] > 1:
                made = made.narrow(0, 1, made.shape[0] - 1)
            elif choice == 2:
                made = made.unsqueeze(0).expand(3, *made.shape)
            elif choice == 3 and made.dim() and made.shape[-1] > 2:
                made = made.as_strided(made.shape, made.stride(), made.storage_offset())[..., ::2]
            elif choice == 4:
                made = torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage())
        return made.detach()

    def parameter(self):
        torch = self.torch
        dtype = self.random.choice([torch.float32, torch.bfloat16, torch.float64, torch.int64])
        made = torch.tensor([self.random.random() for _ in range(4)]).to(dtype).reshape(2, 2)
        self.tensors.append(made)
        made = torch.nn.Parameter(
            made.t(), requires_grad=dtype.is_floating_point and self.random.random() < 0.5
        )
        return made

    def flagged(self):
        torch = self.torch
        made = torch.tensor([complex(self.random.random(), 1) for _ in range(3)])
        made = self.random.choice(
            [made.conj(), made.conj().imag, made.imag, torch._neg_view(made)]
        ).detach()
        return made.requires_grad_() if self.random.random() < 0.3 else made

    def sparse(self):
        torch = self.torch
        dense = torch.tensor([[self.random.choice([0.0, 1.0]) for _ in range(4)] for _ in range(4)])
        kind = self.random.randrange(6)
        if kind == 0:
            return torch.sparse_coo_tensor([[1, 1, 0], [2, 2, 0]], [1.0, 2.0, 3.0], (2, 3))
        if kind == 1:
            return dense.to_sparse().requires_grad_()
        if kind == 2:
            return torch.nn.Parameter(dense.to_sparse(), requires_grad=False)
        return [dense.to_sparse_csr, dense.to_sparse_csc, lambda: dense.to_sparse_bsr((2, 2))][
            kind - 3
        ]()

    def torch_small(self):
        torch = self.torch
        size = torch.Size(self.shape())
        return self.random.choice(
            [
                size,
                torch.float32,
                torch.device("cuda:1"),
                torch.strided,
                torch.channels_last,
                torch.uint16,
            ]
        )

    # Containers.

    def key(self):
        return self.random.choice([self.integer, self.text, self.bytes, self.text, self.text])()

    def odd_key(self):
        return self.random.choice(
            [
                (1, "a"),
                Color.RED,
                frozenset({1}),
                np.int64(self.random.randrange(9)),
                Frozen(1, "x"),
                "\udcff",
                None,
            ]
        )

    def container(self, depth):
        r = self.random
        items = [self.value(depth - 1) for _ in range(r.randrange(5))]
        keyed = {self.key(): item for item in items}
        first, second = (
            (self.value(depth - 1), self.value(depth - 1)) if r.random() < 0.4 else (1, "b")
        )
        made = r.choice(
            [
                lambda: keyed,
                lambda: keyed,
                lambda: items,
                lambda: tuple(items),
                lambda: self.ordered(keyed),
                lambda: defaultdict(r.choice([list, int, None, dict]), keyed),
                lambda: {**{self.odd_key(): item for item in items}, "plain": 1},
                lambda: deque(items, r.choice([None, 9])),
                lambda: Pair(first, second),
                lambda: Typed("n", first),
                lambda: self.config(items, first),
                lambda: Frozen(first, second),
                lambda: Slotted(first, second),
                lambda: Outer.Data(first),
                lambda: self.registry(keyed),
                lambda: OrderedSub(keyed),
                lambda: DefaultSub(int, keyed),
                lambda: Counter("abracadabra"),
            ]
        )
        return made()

    def ordered(self, keyed):
        made = OrderedDict(keyed)
        if made and self.random.random() < 0.5:
            made.move_to_end(next(iter(made)))
        if self.random.random() < 0.5:
            made._metadata = OrderedDict(
                [("b", {"version": 2}), ("a", {"version": 1, "x": (1.5, None)})]
            )
        return made

    def config(self, items, first):
        made = Config(0.5, items)
        made.seen = self.integer()
        if self.random.random() < 0.3:
            made.cached = first
        return made

    def registry(self, keyed):
        made = Registry(keyed)
        made.note = {"b": [1, 2.5, "x"], "a": float("nan").hex()}
        return made

    def value(self, depth):
        if depth > 0 and self.random.random() < 0.5:
            return self.container(depth)
        return self.random.choice(self.leaves)()

    def state(self):
        keys = (f"{name}{number}" for number, name in enumerate(itertools.cycle("abc")))
        return {
            next(keys): self.value(self.random.randrange(4))
            for _ in range(self.random.randrange(1, 9))
        }


TORCH_DTYPES = [
    *SIMPLE,
    *"bfloat16 complex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split(),
    *"float4_e2m1fn_x2 bits8 bits16 bits1x8 bits2x4 bits4x2 uint1 uint4 uint7 int1 int4 int7".split(),
]
