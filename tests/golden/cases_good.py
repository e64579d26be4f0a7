"""The good manifests. Each builder returns a pair: the item to encode, and its description for
JSON."""

import math
import struct

from wire import big, cbor, manifest

DTYPES = [  # name, bytes of an element
    ("bool", 1),
    ("uint8", 1),
    ("int8", 1),
    ("uint16", 2),
    ("int16", 2),
    ("uint32", 4),
    ("int32", 4),
    ("uint64", 8),
    ("int64", 8),
    ("float16", 2),
    ("bfloat16", 2),
    ("float32", 4),
    ("float64", 8),
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("float8_e4m3fn", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("qint8", 1),
    ("quint8", 1),
    ("qint32", 4),
    ("quint4x2", 1),
    ("quint2x4", 1),
    ("bits8", 1),
    ("bits16", 2),
    ("bits1x8", 1),
    ("bits2x4", 1),
    ("bits4x2", 1),
    *((f"uint{bits}", 1) for bits in range(1, 8)),
    *((f"int{bits}", 1) for bits in range(1, 8)),
]
DEVICES = ["cpu", "cuda", "xpu", "hip", "mps", "hpu", "xla", "mtia", "npu", "meta", "privateuseone"]
U8, F16, BF16, F32, F64, C64, I64 = 1, 9, 10, 11, 12, 14, 8
MIB = 1 << 20


# Values.


def plain(content):
    """None, a bool, an integer, a string or bytes."""
    if isinstance(content, bytes):
        return content, {"bytes": content.hex()}
    if isinstance(content, int) and not -(2**63) <= content < 2**63:
        return big(content), {"bigint": str(content)}
    return content, content


def real(bits):
    return [4, bytes.fromhex(bits)], {"float": bits}


def number(content):
    return real(struct.pack(">d", content).hex())


def complex_number(one, other):
    return [5, bytes.fromhex(one + other)], {"complex": [one, other]}


def pair(item):
    return item if isinstance(item, tuple) else plain(item)


def sequence(kind, name, items):
    items = [pair(item) for item in items]
    return [kind, *(wire for wire, _ in items)], {name: [text for _, text in items]}


def list_of(*items):
    return sequence(8, "list", items)


def tuple_of(*items):
    return sequence(9, "tuple", items)


def dict_of(*entries):
    entries = [(pair(key), pair(item)) for key, item in entries]
    return [10, *(one[0] for entry in entries for one in entry)], {
        "dict": [[key[1], item[1]] for key, item in entries]
    }


def object_of(name, payload):
    wire, text = pair(payload)
    return [11, name, wire], {"object": name, "payload": text}


# Tensors.


def fill_strides(sizes):
    return [math.prod(max(size, 1) for size in sizes[i + 1 :]) for i in range(len(sizes))]


def tensor(storage, dtype, sizes, strides=None, offset=0, flags=0):
    text = {
        "storage": storage,
        "dtype": DTYPES[dtype][0],
        "flags": flags,
        "offset": offset,
        "sizes": sizes,
        "strides": fill_strides(sizes) if strides is None else strides,
    }
    return [12, storage, dtype, flags, offset, sizes, strides], {"tensor": text}


PLACEMENTS = ["replicate", "shard", "strided_shard", "partial"]


def dtensor(mesh, placements, dtype, sizes, local, strides=None, flags=0):
    text = {
        "mesh": mesh,
        "placements": [[PLACEMENTS[kind], *rest] for kind, *rest in placements],
        "dtype": DTYPES[dtype][0],
        "flags": flags,
        "sizes": sizes,
        "strides": fill_strides(sizes) if strides is None else strides,
        "local": local[1]["tensor"],
    }
    return [13, mesh, placements, dtype, flags, sizes, strides, local[0]], {"dtensor": text}


def place(rank=-1, kind=0, index=-1):
    return [rank, kind, index], [rank, DEVICES[kind], index]


def box(offsets, sizes, where=place()):
    return [offsets, sizes, *where[0]], {"offsets": offsets, "sizes": sizes, "place": where[1]}


def sharded(dtype, sizes, shards, boxes, sharding=(None, None), flags=0, form=0):
    text = {
        "dtype": DTYPES[dtype][0],
        "flags": flags,
        "format": form,
        "sizes": sizes,
        "shards": [{"box": one[1], "tensor": local[1]["tensor"]} for one, local in shards],
        "boxes": [one[1] for one in boxes],
        "sharding": sharding[1],
    }
    wire = [
        14,
        dtype,
        flags,
        form,
        sizes,
        [[*one[0], local[0]] for one, local in shards],
        [one[0] for one in boxes],
        sharding[0],
    ]
    return wire, {"sharded": text}


def chunk_sharding(dim, places):
    return [1, dim, [one[0] for one in places]], {
        "chunk": dim,
        "places": [one[1] for one in places],
    }


def enumerable_sharding(boxes):
    return [2, [one[0] for one in boxes]], {"enumerable": [one[1] for one in boxes]}


# The parts of a manifest (storages, meshes), and whole manifests.


def storage(nbytes, extents=None, kind=0, index=-1):
    """extents: None, or a list of (offset, length, count, stride, count, stride...)."""
    full = [(0, nbytes)] if extents is None else extents
    text = {
        "nbytes": nbytes,
        "device": [DEVICES[kind], index],
        "extents": [
            [offset, length, [list(level) for level in zip(levels[::2], levels[1::2])]]
            for offset, length, *levels in full
        ],
    }
    wire = (
        None
        if extents is None
        else [[o, n, levels] if levels else [o, n] for o, n, *levels in extents]
    )
    return [nbytes, kind, index, wire], text


def mesh(sizes, ranks, names=None, kind=0):
    return [kind, sizes, ranks, names], {
        "device": DEVICES[kind],
        "sizes": sizes,
        "ranks": ranks,
        "names": names,
    }


def runs_of(extent):
    """The offsets of all runs of an extent."""
    offset, _, levels = extent
    begins = [offset]
    for count, stride in levels:
        begins = [begin + i * stride for begin in begins for i in range(count)]
    return begins


def part_begins(storages, chunk, part):
    """For the part of the space that starts at `part`: its end, and the starts of its chunks.
    Visits all runs."""
    begins, position = [], part
    for text in storages:
        for extent in text["extents"]:
            for begin in runs_of(extent):
                end = position + extent[1]
                while part + len(begins) * chunk < end:
                    byte = begin + part + len(begins) * chunk - position
                    begins.append(part + len(begins) * chunk - min(byte % 16, byte - begin))
                position = end
    return position, begins


def chunk_begins(storages, chunk):
    """The length of the space, and the starts of its chunks. Storages on the CPU come first."""
    middle, first = part_begins([text for text in storages if text["device"][0] == "cpu"], chunk, 0)
    end, second = part_begins(
        [text for text in storages if text["device"][0] != "cpu"], chunk, middle
    )
    return end, first + second


def tensors_of(text):
    """The descriptions of all tensors below a description, local parts included."""
    if isinstance(text, list):
        return [one for item in text for one in tensors_of(item)]
    if not isinstance(text, dict):
        return []
    local = [text[key] for key in ("tensor", "local") if key in text]
    return local + [
        one
        for key, item in text.items()
        if key not in ("tensor", "local")
        for one in tensors_of(item)
    ]


def view_bytes(tensors):
    size = dict(DTYPES)
    return sum(math.prod(one["sizes"]) * size[one["dtype"]] for one in tensors)


def whole(root, storages=(), meshes=(), chunk=4 * MIB, rank=-1):
    """The bytes of a manifest and its description."""
    root = pair(root)
    storage_texts, tensors = [text for _, text in storages], tensors_of(root[1])
    space, begins = chunk_begins(storage_texts, chunk)
    description = {
        "chunk_bytes": chunk,
        "rank": rank,
        "storages": storage_texts,
        "meshes": [text for _, text in meshes],
        "root": root[1],
        "summary": {
            "tensors": len(tensors),
            "storages": len(storages),
            "extents": sum(len(text["extents"]) for text in storage_texts),
            "storage_bytes": sum(text["nbytes"] for text in storage_texts),
            "view_bytes": view_bytes(tensors),
            "bytes": space,
            "chunks": len(begins),
            "chunk_begins": begins[:16],
        },
    }
    return cbor(
        manifest(root[0], [s for s, _ in storages], [m for m, _ in meshes], chunk, rank)
    ), description


# The cases.


def scalar_cases():
    edges = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1]
    ints = edges + [-1 - edge for edge in edges]
    bigs = [
        2**63,
        -(2**63) - 1,
        2**64 - 1,
        2**64,
        -(2**64),
        -(2**64) - 1,
        2**200,
        -(2**200),
        2**2000,
    ]
    floats = [
        "0000000000000000",
        "8000000000000000",
        "3ff0000000000000",
        "7ff0000000000000",
        "fff0000000000000",
        "7ff8000000000000",
        "fff8000000000001",
        "7ff0000000000001",
        "7ff4deadbeef0001",
        "0000000000000001",
        "7fefffffffffffff",
        "400921fb54442d18",
    ]
    strings = [
        "",
        "a",
        "zero \0 within",
        "\u00e9\u20ac\U0001f6a2",
        "\ud7ff\ue000\uffff\U00010000\U0010ffff",
    ]
    lengths = [23, 24, 255, 256, 65536]
    return {
        "none": whole(None),
        "empty_dict": whole(dict_of()),
        "bools": whole(list_of(True, False, None)),
        "ints": whole(list_of(*ints)),
        "big_ints": whole(list_of(*bigs)),
        "floats": whole(list_of(*map(real, floats))),
        "complex": whole(
            list_of(*(complex_number(one, other) for one, other in zip(floats, reversed(floats))))
        ),
        "strings": whole(list_of(*strings)),
        "bytes": whole(list_of(b"", b"\0", bytes(range(256)))),
        "lengths": whole(list_of(*("s" * n for n in lengths), *(b"b" * n for n in lengths[:4]))),
    }


def container_cases():
    deep = 7
    for level in range(256):
        deep = [
            list_of,
            tuple_of,
            lambda item: dict_of(("k", item)),
            lambda item: object_of("o", item),
        ][level % 4](deep)
    keys = [
        None,
        False,
        True,
        0,
        1,
        -1,
        2**64,
        -(2**64),
        number(1.0),
        number(-0.0),
        number(0.0),
        real("7ff8000000000001"),
        real("7ff8000000000002"),
        complex_number("3ff0000000000000", "0000000000000000"),
        "",
        "1",
        b"",
        b"1",
        "a.b/c[0]",
    ]
    return {
        "empty_containers": whole(
            list_of(
                list_of(), tuple_of(), dict_of(), object_of("t", list_of()), object_of("t", None)
            )
        ),
        "keys": whole(dict_of(*((key, i) for i, key in enumerate(keys)))),
        "objects": whole(
            object_of(
                "collections.OrderedDict",
                dict_of(
                    ("size", object_of("torch.Size", tuple_of(2, 3))),
                    ("\u00fc", object_of("\u00fcber", object_of("x", 5))),
                ),
            )
        ),
        "depth_256": whole(deep),
        "wide": whole(
            list_of(
                *range(300),
                dict_of(*((i, i) for i in range(130))),
                list_of(*range(22)),
                list_of(*range(23)),
            )
        ),
        "rank": whole(dict_of(("rank", 2**63 - 1)), rank=2**63 - 1),
    }


def tensor_cases():
    all_dtypes = [tensor(i, i, [3]) for i in range(46)]
    return {
        "dtypes": whole(list_of(*all_dtypes), [storage(3 * DTYPES[i][1]) for i in range(46)]),
        "flags": whole(
            list_of(*(tensor(0, C64, [2], flags=flags) for flags in range(8))), [storage(16)]
        ),
        "devices": whole(
            list_of(*(tensor(i, U8, [4]) for i in range(11))),
            [storage(4, kind=i, index=i * 3 - 1) for i in range(11)],
        ),
        "contiguous": whole(
            dict_of(("w", tensor(0, F32, [2, 3])), ("step", 7)), [storage(24)], rank=0
        ),
        "transposed": whole(tensor(0, F32, [3, 2], [1, 3]), [storage(24)]),
        "expanded": whole(tensor(0, F64, [1000, 5], [0, 1], offset=1), [storage(48, [(8, 40)])]),
        "odd_strides": whole(
            list_of(
                tensor(0, F32, [1, 4], [77, 1]),
                tensor(0, F32, [1], [2**62]),
                tensor(0, F32, [2, 2], [1, 2]),
            ),
            [storage(16)],
        ),
        "largest": whole(
            list_of(tensor(0, U8, [2**63 - 1], [0]), tensor(0, U8, [0], offset=2**63 - 1)),
            [storage(1)],
        ),
        "zero_size": whole(
            list_of(
                tensor(0, F32, [0]),
                tensor(1, F32, [4, 0, 5]),
                tensor(1, F32, [0, 3], offset=99),
                tensor(1, F32, [0, 3], [1, 1]),
                tensor(1, F32, [3, 0], [5, 7]),
            ),
            [storage(0, []), storage(12, [])],
        ),
        "zero_dim": whole(
            list_of(tensor(0, F64, []), tensor(0, F64, [], offset=2)),
            [storage(24, [(0, 8), (16, 8)])],
        ),
        "dims_64": whole(
            list_of(tensor(0, U8, [2] * 8 + [1] * 56), tensor(0, U8, [1] * 64, [5] * 64)),
            [storage(256)],
        ),
        "shared_storage": whole(
            dict_of(
                ("embed", tensor(0, F32, [4, 4])),
                ("head", tensor(0, F32, [4, 4], [1, 4])),
                ("other", tensor(1, F16, [8])),
                ("row", tensor(0, F32, [4], offset=8)),
                ("bits", tensor(0, I64, [8])),
            ),
            [storage(64), storage(16)],
        ),
    }


def extent_cases():
    twelve = [n for level in range(12) for n in (2, 3 << (11 - level) * 2)]
    return {
        "strided_one_level": whole(
            tensor(0, F32, [16, 2], [2048, 1], offset=3), [storage(16 * 8192, [(12, 8, 16, 8192)])]
        ),
        "strided_two_levels": whole(
            tensor(0, F16, [3, 4, 5], [10000, 2048, 1]),
            [storage(60000, [(0, 10, 3, 20000, 4, 4096)])],
        ),
        "strided_touching": whole(
            tensor(0, U8, [2, 2, 8], [32, 8, 1]), [storage(48, [(0, 8, 2, 32, 2, 8), (16, 12)])]
        ),
        "levels_12": whole(
            tensor(0, U8, [2] * 12, twelve[1::2]),
            [storage(2 + 3 * (4**12 - 1) // 3, [(0, 2, *twelve)])],
            chunk=4096,
        ),
        "extents": whole(
            list_of(
                tensor(0, U8, [100]), tensor(0, U8, [50], offset=300), tensor(1, F32, [], offset=3)
            ),
            [
                storage(1000, [(0, 100), (0, 4, 3, 40), (50, 60, 3, 80), (300, 50), (351, 9)]),
                storage(16, [(12, 4)]),
            ],
        ),
        "chunks_10_mib": whole(tensor(0, F32, [10 * MIB // 4]), [storage(10 * MIB)]),
        "chunks_exact": whole(
            list_of(tensor(0, U8, [4096]), tensor(1, U8, [8192])),
            [storage(4096), storage(8192)],
            chunk=4096,
        ),
        "chunks_odd": whole(
            list_of(*(tensor(i, U8, [n]) for i, n in enumerate([5000, 1, 3, 7777, 12, 20011]))),
            [storage(n) for n in [5000, 1, 3, 7777, 12, 20011]],
            chunk=4096,
        ),
        "chunks_offset": whole(
            list_of(tensor(0, U8, [9000], offset=5), tensor(0, U8, [9001], offset=20001)),
            [storage(40000, [(5, 9000), (20001, 9001)])],
            chunk=4096,
        ),
        "chunks_strided": whole(
            tensor(0, U8, [1000, 24], [40, 1], offset=5),
            [storage(50000, [(5, 24, 1000, 40)])],
            chunk=4096,
        ),
        "chunks_short_runs": whole(
            tensor(0, U8, [3000, 7], [4100, 1], offset=9),
            [storage(3000 * 4100, [(9, 7, 3000, 4100)])],
            chunk=4096,
        ),
        "chunks_large": whole(tensor(0, BF16, [3, 1 << 29]), [storage(3 << 30)], chunk=1 << 30),
        "total_64_tib": whole(tensor(0, F32, [1 << 44]), [storage(1 << 46)], chunk=1 << 30),
    }


def distributed_cases():
    line, grid = mesh([2], [0, 1]), mesh([2, 4], [7, 6, 5, 4, 3, 2, 1, 0], ["dp", "tp"], kind=1)
    cube = mesh([1, 1, 2, 1, 1], [9, 2**40], ["", "a", "b", "\u00e9", "c"])
    quarter = [box([2 * i, 0], [2, 3], place(i, 1, i)) for i in range(4)]
    return {
        "dtensor_1d": whole(
            dtensor(0, [[1, 0]], F32, [4, 3], tensor(0, F32, [2, 3])), [storage(24)], [line], rank=1
        ),
        "dtensor_2d": whole(
            dict_of(
                (
                    "a",
                    dtensor(
                        0, [[0], [1, 1]], F32, [2, 8], tensor(0, F32, [2, 2], flags=1), flags=1
                    ),
                ),
                (
                    "b",
                    dtensor(
                        0,
                        [[3, "sum"], [2, 0, 2]],
                        F32,
                        [8, 2],
                        tensor(1, F32, [2, 2]),
                        strides=[1, 8],
                    ),
                ),
                ("c", dtensor(0, [[3, ""], [0]], F32, [], tensor(2, F32, []))),
            ),
            [
                storage(16, kind=1, index=0),
                storage(16, kind=1, index=0),
                storage(4, kind=1, index=0),
            ],
            [grid],
            rank=3,
        ),
        "meshes": whole(
            list_of(
                dtensor(0, [[1, 0]], U8, [4], tensor(0, U8, [2])),
                dtensor(1, [[0], [0], [1, 0], [3, "avg"], [2, 0, 1]], U8, [4], tensor(0, U8, [2])),
                dtensor(2, [[0]], U8, [4], tensor(0, U8, [4])),
                dtensor(0, [[0]], U8, [4], tensor(0, U8, [4])),
            ),
            [storage(4)],
            [line, cube, mesh([2], [0, 1], ["x"])],
        ),
        "sharded_chunk": whole(
            sharded(
                F32,
                [8, 3],
                [(quarter[1], tensor(0, F32, [2, 3]))],
                quarter,
                chunk_sharding(-2, [place(i, 1, i) for i in range(4)]),
                flags=3,
                form=1,
            ),
            [storage(24, kind=1, index=1)],
            rank=1,
        ),
        "sharded_enumerable": whole(
            sharded(
                F16,
                [8, 3],
                [
                    (quarter[0], tensor(0, F16, [2, 3])),
                    (quarter[3], tensor(0, F16, [2, 3], [1, 2], offset=6)),
                    (box([8, 3], [0, 0]), tensor(1, F16, [0, 0])),
                ],
                quarter,
                enumerable_sharding(quarter),
                flags=1,
                form=3,
            ),
            [storage(24), storage(0, [])],
        ),
        "sharded_null": whole(
            list_of(
                sharded(F32, [5], [], [box([0], [2]), box([2], [3], place(0))], form=2),
                sharded(F64, [], [], []),
                sharded(
                    F32,
                    [],
                    [(box([], []), tensor(0, F32, []))],
                    [box([], [])],
                    chunk_sharding(0, []),
                ),
                sharded(F32, [], [], [], enumerable_sharding([])),
            ),
            [storage(4)],
        ),
    }


def state_case():
    layers, storages = [], []
    for i in range(3):
        layers += [
            (f"layers.{i}.weight", tensor(2 * i, BF16, [64, 48])),
            (f"layers.{i}.bias", tensor(2 * i + 1, BF16, [64])),
        ]
        storages += [storage(64 * 48 * 2, kind=1, index=0), storage(128, kind=1, index=0)]
    model = object_of("collections.OrderedDict", dict_of(*layers))
    moments = [
        (
            i,
            dict_of(
                ("step", tensor(6 + i, F32, [])), ("exp_avg", tensor(9, F32, [64], offset=64 * i))
            ),
        )
        for i in range(3)
    ]
    betas = tuple_of(number(0.9), number(0.999))
    groups = list_of(dict_of(("lr", number(0.1)), ("betas", betas), ("params", list_of(0, 1, 2))))
    steps = [tensor(6 + i, F32, []) for i in range(3)]
    optimizer = dict_of(
        ("steps", list_of(*steps)), ("state", dict_of(*moments)), ("param_groups", groups)
    )
    root = dict_of(
        ("model", model),
        ("optimizer", optimizer),
        ("epoch", 3),
        ("note", None),
        ("rng", b"\x01\x02\x03"),
    )
    return {
        "state_dict": whole(
            root, [*storages, *(storage(4) for _ in range(3)), storage(768)], chunk=8192, rank=0
        )
    }


def good_cases():
    return {
        **scalar_cases(),
        **container_cases(),
        **tensor_cases(),
        **extent_cases(),
        **distributed_cases(),
        **state_case(),
    }
