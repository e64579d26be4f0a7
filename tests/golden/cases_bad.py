"""The bad manifests, each with the status that a decoder returns.

Each has one fault. Most are a good manifest with one item replaced. Padding follows the faulty
part, so that a wrong length never also exceeds the remaining bytes."""

import copy

from wire import Raw, Tag, cbor, claim, manifest

TRUNCATED, MALFORMED, NOT_CANONICAL = "WHERRY_TRUNCATED", "WHERRY_MALFORMED", "WHERRY_NOT_CANONICAL"
BAD_VERSION, LIMIT, OUT_OF_BOUNDS = "WHERRY_BAD_VERSION", "WHERRY_LIMIT", "WHERRY_OUT_OF_BOUNDS"
REPEATED_KEY, TRAILING_BYTES = "WHERRY_REPEATED_KEY", "WHERRY_TRAILING_BYTES"

BYTES, TEXT, ARRAY = 2, 3, 4  # CBOR's major types
F32 = 11
PAD = "padding" * 40
STORAGE = [24, 0, -1, None]
TENSOR = [12, 0, F32, 0, 0, [2, 3], None]
MESH = [0, [2], [0, 1], ["dp"]]
DTENSOR = [13, 0, [[1, 0]], F32, 0, [4, 3], None, TENSOR]
BOX = [[0, 0], [2, 3], 0, 0, -1]
SHARDED = [14, F32, 0, 0, [4, 3], [[*BOX, TENSOR]], [BOX], [1, 0, [[0, 0, -1]]]]


def padded(*values):
    return [8, *values, PAD]


def one(value, storages=(), meshes=(), **fields):
    """The bytes of a manifest around a value."""
    return cbor(manifest(padded(value), storages, meshes, **fields))


def changed(item, changes):
    """A copy with the item at each path replaced."""
    item = copy.deepcopy(item)
    for path, new in changes.items():
        within = item
        for step in path[:-1]:
            within = within[step]
        within[path[-1]] = new
    return item


def full():
    """A manifest with an item of each kind."""
    storages = [[100, 0, -1, [[0, 8], [8, 4, [2, 20, 3, 6]]]], [24, 0, -1, None]]
    root = [
        10,
        "t",
        [12, 0, F32, 0, 0, [1, 2], [5, 1]],
        "d",
        changed(DTENSOR, {(7, 1): 1}),
        "s",
        changed(SHARDED, {(5, 0, 5, 1): 1}),
        "e",
        changed(SHARDED, {(5,): [], (7,): [2, [BOX]]}),
        "o",
        [11, "name", None],
        "f",
        [4, bytes(8)],
        "c",
        [5, bytes(16)],
        "p",
        changed(DTENSOR, {(2,): [[3, "sum"]], (7, 1): 1}),
        "q",
        changed(DTENSOR, {(2,): [[2, 0, 1]], (7, 1): 1}),
        "pad",
        PAD,
    ]
    return manifest(root, storages, [MESH])


# Where each item of the specification is in full(). The root's values are at 6, 2; 6, 4; and so on.
POSITIONS = {
    "magic": (0,),
    "version": (1,),
    "chunk_bytes": (2,),
    "rank": (3,),
    "storages": (4,),
    "storage": (4, 0),
    "storage_nbytes": (4, 0, 0),
    "storage_device_kind": (4, 0, 1),
    "storage_device_index": (4, 0, 2),
    "extents": (4, 0, 3),
    "extent": (4, 0, 3, 0),
    "extent_offset": (4, 0, 3, 0, 0),
    "extent_length": (4, 0, 3, 0, 1),
    "levels": (4, 0, 3, 1, 2),
    "level_count": (4, 0, 3, 1, 2, 0),
    "level_stride": (4, 0, 3, 1, 2, 1),
    "meshes": (5,),
    "mesh": (5, 0),
    "mesh_device_kind": (5, 0, 0),
    "mesh_sizes": (5, 0, 1),
    "mesh_size": (5, 0, 1, 0),
    "mesh_ranks": (5, 0, 2),
    "mesh_rank": (5, 0, 2, 1),
    "mesh_names": (5, 0, 3),
    "mesh_name": (5, 0, 3, 0),
    "value_kind": (6, 0),
    "tensor_storage": (6, 2, 1),
    "tensor_dtype": (6, 2, 2),
    "tensor_flags": (6, 2, 3),
    "tensor_offset": (6, 2, 4),
    "tensor_sizes": (6, 2, 5),
    "tensor_size": (6, 2, 5, 0),
    "tensor_strides": (6, 2, 6),
    "tensor_stride": (6, 2, 6, 0),
    "dtensor_mesh": (6, 4, 1),
    "dtensor_placements": (6, 4, 2),
    "placement": (6, 4, 2, 0),
    "placement_kind": (6, 4, 2, 0, 0),
    "placement_dim": (6, 4, 2, 0, 1),
    "dtensor_dtype": (6, 4, 3),
    "dtensor_flags": (6, 4, 4),
    "dtensor_sizes": (6, 4, 5),
    "dtensor_strides": (6, 4, 6),
    "dtensor_local": (6, 4, 7),
    "dtensor_local_kind": (6, 4, 7, 0),
    "sharded_dtype": (6, 6, 1),
    "sharded_flags": (6, 6, 2),
    "sharded_format": (6, 6, 3),
    "sharded_sizes": (6, 6, 4),
    "sharded_shards": (6, 6, 5),
    "shard": (6, 6, 5, 0),
    "shard_offsets": (6, 6, 5, 0, 0),
    "shard_sizes": (6, 6, 5, 0, 1),
    "shard_rank": (6, 6, 5, 0, 2),
    "shard_device_kind": (6, 6, 5, 0, 3),
    "shard_device_index": (6, 6, 5, 0, 4),
    "shard_tensor": (6, 6, 5, 0, 5),
    "sharded_infos": (6, 6, 6),
    "info": (6, 6, 6, 0),
    "info_rank": (6, 6, 6, 0, 2),
    "sharding": (6, 6, 7),
    "sharding_kind": (6, 6, 7, 0),
    "sharding_dim": (6, 6, 7, 1),
    "sharding_places": (6, 6, 7, 2),
    "place": (6, 6, 7, 2, 0),
    "place_rank": (6, 6, 7, 2, 0, 0),
    "enumerable_infos": (6, 8, 7, 1),
    "enumerable_info": (6, 8, 7, 1, 0),
    "object_name": (6, 10, 1),
    "float": (6, 12, 1),
    "complex": (6, 14, 1),
    "partial_name": (6, 16, 2, 0, 1),
    "split_factor": (6, 18, 2, 0, 2),
}


def type_cases():
    """`true` at each position that does not allow it; a map, a float and a tag as values."""
    cases = {
        f"type_{name}": (cbor(changed(full(), {path: True})), MALFORMED)
        for name, path in POSITIONS.items()
    }
    values = {
        "map": "a0",
        "map_of_one": "a10102",
        "map_like_list": "a108f6",
        "undefined": "f7",
        "simple_0": "e0",
        "simple_255": "f8ff",
        "half": "f93e00",
        "half_zero": "f90000",
        "single": "fa3fc00000",
        "double": "fb3ff8000000000000",
        "break": "ff",
        "reserved_28": "1c",
        "reserved_30": "9e",
        "int_indefinite": "1f",
        "negative_indefinite": "3f",
        "tag_0": "c0613a",
        "tag_28_shareable": "d81c8108",
        "tag_29_reference": "d81d00",
        "tag_4": "c4820102",
        "tag_1_big": "c149010000000000000000",
        "tag_55799": "d9d9f705",
        "empty_array": "80",
        "array_of_text": "816161",
        "tag_2_text": "c26161",
        "tag_2_int": "c205",
        "tag_3_array": "c38108",
    }
    cases.update({f"value_{name}": (one(Raw(data)), MALFORMED) for name, data in values.items()})
    cases.update(
        {
            "value_empty_array_then_8": (cbor(manifest(padded(Raw("80"), 8))), MALFORMED),
            "root_map": (cbor(manifest(Raw("a0"))), MALFORMED),
            "whole_int": (cbor(7), MALFORMED),
            "whole_map": (bytes.fromhex("a0"), MALFORMED),
            "whole_tagged": (cbor(Tag(55799, manifest(padded()))), MALFORMED),
            "big_integer_as_size": (
                one(None, [[Tag(2, b"\1" + bytes(8)), 0, -1, None]]),
                MALFORMED,
            ),
        }
    )
    return cases


def whole_cases():
    good = manifest(padded())
    cases = {
        "empty": (b"", TRUNCATED),
        "magic_other": (cbor(changed(good, {(0,): "wherrY"})), MALFORMED),
        "magic_short": (cbor(changed(good, {(0,): "wherr"})), MALFORMED),
        "magic_empty": (cbor(changed(good, {(0,): ""})), MALFORMED),
        "magic_bytes": (cbor(changed(good, {(0,): b"wherry"})), MALFORMED),
        "magic_not_utf8": (cbor(changed(good, {(0,): Raw("667768657272ff")})), MALFORMED),
        "magic_other_version_2": (cbor(changed(good, {(0,): "ferry", (1,): 2})), MALFORMED),
        "version_negative": (cbor(changed(good, {(1,): -1})), BAD_VERSION),
        "version_2_3_items": (cbor(["wherry", 2, Raw("a0")]), BAD_VERSION),
        "version_2_2_items": (cbor(["wherry", 2]), BAD_VERSION),
        "version_2_many_items": (cbor(claim(ARRAY, 2**40, "wherry", 2)), BAD_VERSION),
        "version_2_then_nonsense": (cbor(["wherry", 2, Raw("ff")]), BAD_VERSION),
        "version_2_trailing": (cbor(["wherry", 2]) + b"\0", BAD_VERSION),
        "version_not_shortest": (cbor(changed(good, {(1,): Raw("1801")})), NOT_CANONICAL),
        "version_text": (cbor(changed(good, {(1,): "1"})), MALFORMED),
        "items_6": (cbor(claim(ARRAY, 6, *good)), MALFORMED),
        "items_8": (cbor([*good, None]), MALFORMED),
        "items_many": (cbor(claim(ARRAY, 2**40, *good)), TRUNCATED),
        "trailing_zero": (cbor(good) + b"\0", TRAILING_BYTES),
        "trailing_null": (cbor(good) + b"\xf6", TRAILING_BYTES),
        "trailing_break": (cbor(good) + b"\xff", TRAILING_BYTES),
        "trailing_manifest": (cbor(good) * 2, TRAILING_BYTES),
        "rank_minus_2": (one(None, rank=-2), MALFORMED),
        "rank_too_big": (one(None, rank=2**63), MALFORMED),
    }
    for version in (0, 2, 2**32, 2**63 - 1, 2**63, 2**64 - 1):
        cases[f"version_{version}"] = (cbor(changed(good, {(1,): version})), BAD_VERSION)
    for chunk in (0, 1, 2048, 4095, 4097, 6 << 20, 2**30 + 1, 2**31, 2**62, 2**63, -4096):
        cases[f"chunk_bytes_{chunk}".replace("-", "minus_")] = (one(None, chunk=chunk), MALFORMED)
    small = cbor(manifest([10, "t", TENSOR, "s", "text"], [STORAGE]))
    for size in (1, 2, 7, 8, 12, 20, len(small) - 1):
        cases[f"truncated_{size}"] = (small[:size], TRUNCATED)
    return cases


def form_cases():
    """CBOR that is valid but not canonical, or not allowed at all."""
    spellings = {
        "not_shortest_int_1": "1817",
        "not_shortest_int_2": "1900ff",
        "not_shortest_int_4": "1a0000ffff",
        "not_shortest_int_8": "1b00000000ffffffff",
        "not_shortest_negative": "3800",
        "not_shortest_text": "780161",
        "not_shortest_bytes": "580161",
        "not_shortest_array": "980108",
        "not_shortest_tag": "d80249010000000000000000",
        "not_shortest_kind": "821808f6",
        "text_indefinite": "7f6161ff",
        "bytes_indefinite": "5f4161ff",
        "array_indefinite": "9f08ff",
    }
    cases = {name: (one(Raw(data)), NOT_CANONICAL) for name, data in spellings.items()}
    good = manifest(padded())
    cases.update(
        {
            "whole_indefinite": (b"\x9f" + b"".join(map(cbor, good)) + b"\xff", NOT_CANONICAL),
            "whole_not_shortest": (bytes.fromhex("9807") + cbor(good)[1:], NOT_CANONICAL),
            "magic_not_shortest": (
                cbor(changed(good, {(0,): Raw("7806776865727279")})),
                NOT_CANONICAL,
            ),
            "storages_indefinite": (cbor(changed(good, {(4,): Raw("9fff")})), NOT_CANONICAL),
            "sizes_indefinite": (
                one(changed(TENSOR, {(5,): Raw("9f0203ff")}), [STORAGE]),
                NOT_CANONICAL,
            ),
            "nbytes_not_shortest": (
                one(TENSOR, [changed(STORAGE, {(0,): Raw("190018")})]),
                NOT_CANONICAL,
            ),
            "size_not_shortest": (
                one(changed(TENSOR, {(5, 0): Raw("1802")}), [STORAGE]),
                NOT_CANONICAL,
            ),
            "int_2_63": (one(2**63), MALFORMED),
            "int_2_64_minus_1": (one(2**64 - 1), MALFORMED),
            "int_minus_2_63_minus_1": (one(-(2**63) - 1), MALFORMED),
            "int_minus_2_64": (one(-(2**64)), MALFORMED),
        }
    )
    fits = {
        "empty": Tag(2, b""),
        "zero": Tag(2, b"\0"),
        "1": Tag(2, b"\1"),
        "minus_1": Tag(3, b""),
        "minus_2": Tag(3, b"\1"),
        "2_63_minus_1": Tag(2, b"\x7f" + b"\xff" * 7),
        "minus_2_63": Tag(3, b"\x7f" + b"\xff" * 7),
        "leading_zero": Tag(2, b"\0\x80" + bytes(7)),
        "negative_leading_zero": Tag(3, b"\0\x80" + bytes(7)),
    }
    cases.update({f"big_{name}": (one(tag), NOT_CANONICAL) for name, tag in fits.items()})
    texts = {
        "lone_continuation": "6180",
        "overlong": "62c080",
        "overlong_3": "63e08080",
        "surrogate": "63eda080",
        "above": "64f4908080",
        "cut": "62c3c3",
        "cut_at_end": "61c3",
        "five": "65f888808080",
        "byte_ff": "61ff",
    }
    cases.update({f"utf8_{name}": (one(Raw(data)), MALFORMED) for name, data in texts.items()})
    cases["utf8_key"] = (one([10, Raw("61ff"), 1]), MALFORMED)
    return cases


def count_cases():
    """Counts that exceed the remaining bytes or a limit."""
    huge, text, octets = claim(ARRAY, 2**40), claim(TEXT, 2**62), claim(BYTES, 2**62)
    return {
        "list_2_40": (one(claim(ARRAY, 2**40, 8)), LIMIT),
        "tuple_2_40": (one(claim(ARRAY, 2**40, 9)), LIMIT),
        "dict_2_40": (one(claim(ARRAY, 2**40 + 1, 10)), LIMIT),
        "list_2_63": (one(claim(ARRAY, 2**63, 8)), LIMIT),
        "list_2_64_minus_1": (one(claim(ARRAY, 2**64 - 1, 8)), LIMIT),
        "list_of_2000": (one(claim(ARRAY, 2000, 8)), TRUNCATED),
        "dict_of_2001": (one(claim(ARRAY, 2001, 10)), TRUNCATED),
        "text_2_62": (one(text), LIMIT),
        "text_2_64_minus_1": (one(claim(TEXT, 2**64 - 1)), LIMIT),
        "text_64_mib_and_1": (one(claim(TEXT, (64 << 20) + 1)), LIMIT),
        "text_64_mib": (one(claim(TEXT, 64 << 20)), TRUNCATED),
        "text_of_2000": (one(claim(TEXT, 2000)), TRUNCATED),
        "bytes_2_62": (one(octets), LIMIT),
        "bytes_of_2000": (one(claim(BYTES, 2000)), TRUNCATED),
        "big_integer_2_62": (one(Tag(2, octets)), LIMIT),
        "float_2_62": (one([4, octets]), LIMIT),
        "key_2_62": (one([10, text, 1]), LIMIT),
        "magic_2_62": (cbor(changed(manifest(padded()), {(0,): text})), LIMIT),
        "object_name_2_62": (one([11, text, 1]), LIMIT),
        "storages_2_40": (cbor(changed(manifest(padded()), {(4,): huge})), TRUNCATED),
        "meshes_2_40": (cbor(changed(manifest(padded()), {(5,): huge})), TRUNCATED),
        "extents_2_40": (one(TENSOR, [changed(STORAGE, {(3,): huge})]), TRUNCATED),
        "storages_2000": (cbor(changed(manifest(padded()), {(4,): claim(ARRAY, 2000)})), TRUNCATED),
        "sizes_2_40": (one(changed(TENSOR, {(5,): huge}), [STORAGE]), LIMIT),
        "sizes_65": (one(changed(TENSOR, {(5,): [1] * 65}), [STORAGE]), LIMIT),
        "dtensor_sizes_65": (one(changed(DTENSOR, {(5,): [1] * 65}), [STORAGE], [MESH]), LIMIT),
        "sharded_sizes_65": (one(changed(SHARDED, {(4,): [1] * 65}), [STORAGE]), LIMIT),
        "mesh_sizes_65": (one(DTENSOR, [STORAGE], [changed(MESH, {(1,): [1] * 65})]), LIMIT),
        "mesh_ranks_2_40": (one(DTENSOR, [STORAGE], [[0, [2**40], huge, None]]), TRUNCATED),
        "levels_65": (one(TENSOR, [[24, 0, -1, [[0, 1, [2, 1] * 65]]]]), LIMIT),
        "levels_2_40": (one(TENSOR, [[24, 0, -1, [[0, 1, huge]]]]), LIMIT),
        "shards_2_40": (one(changed(SHARDED, {(5,): huge}), [STORAGE]), TRUNCATED),
        "infos_2_40": (one(changed(SHARDED, {(6,): huge}), [STORAGE]), TRUNCATED),
        "storage_2_60": (one(TENSOR, [changed(STORAGE, {(0,): 2**60})]), LIMIT),
        "storage_64_tib_and_1": (one(TENSOR, [changed(STORAGE, {(0,): 2**46 + 1})]), LIMIT),
        "storages_over_64_tib": (
            one(
                [8, TENSOR, changed(TENSOR, {(1,): 1})],
                [[2**45, 0, -1, []], [2**45 + 1, 0, -1, []]],
            ),
            LIMIT,
        ),
        "space_over_64_tib": (one(TENSOR, [[2**46, 0, -1, [[0, 2**46], [0, 1, [2, 8]]]]]), LIMIT),
    }


def depth_cases():
    cases = {}
    for kind, before in {
        "list": (8,),
        "tuple": (9,),
        "dict": (10, "k"),
        "object": (11, "o"),
    }.items():
        for depth in (257, 300):
            item = None
            for _ in range(depth):
                item = [*before, item]
            cases[f"depth_{kind}_{depth}"] = (cbor(manifest(item)), LIMIT)
    cases["depth_heads_10000"] = (one(Raw("8208" * 10000)), LIMIT)
    return cases


def value_cases():
    cases = {
        "dict_odd": (one([10, "k"]), MALFORMED),
        "dict_odd_3": (one([10, "k", 1, "l"]), MALFORMED),
        "float_short": (one([4, bytes(7)]), MALFORMED),
        "float_long": (one([4, bytes(9)]), MALFORMED),
        "float_no_bytes": (one([4]), MALFORMED),
        "float_two": (one([4, bytes(8), bytes(8)]), MALFORMED),
        "complex_8": (one([5, bytes(8)]), MALFORMED),
        "complex_two": (one([5, bytes(8), bytes(8)]), MALFORMED),
        "object_empty_name": (one([11, "", 1]), MALFORMED),
        "object_zero_byte": (one([11, "a\0b", 1]), MALFORMED),
        "object_name_bytes": (one([11, b"a", 1]), MALFORMED),
        "object_no_payload": (one([11, "a"]), MALFORMED),
        "object_two_payloads": (one([11, "a", 1, 2]), MALFORMED),
    }
    for kind in (0, 1, 2, 3, 6, 7, 15, 16, 255, 2**62):
        cases[f"kind_{kind}"] = (one([kind, bytes(8)]), MALFORMED)
    cases["kind_negative"] = (one([-1, bytes(8)]), MALFORMED)
    keys = {
        "none": None,
        "false": False,
        "true": True,
        "int": 5,
        "negative": -5,
        "big": Tag(2, b"\1" + bytes(8)),
        "string": "k",
        "empty_string": "",
        "bytes": b"k",
        "float": [4, bytes(8)],
        "nan": [4, b"\x7f\xf8" + bytes(6)],
        "complex": [5, bytes(16)],
    }
    for name, key in keys.items():
        cases[f"repeated_{name}"] = (one([10, key, 1, "between", 2, key, 1]), REPEATED_KEY)
    cases["repeated_inner"] = (one([10, "k", [10, "a", 1, "a", 2]]), REPEATED_KEY)
    cases["repeated_far"] = (
        one([10, *(n for i in range(500) for n in (i, 0)), 0, 0]),
        REPEATED_KEY,
    )
    not_keys = {
        "list": [8],
        "tuple": [9, 1],
        "dict": [10],
        "object": [11, "o", 1],
        "tensor": TENSOR,
    }
    cases.update(
        {f"key_{name}": (one([10, key, 1], [STORAGE]), MALFORMED) for name, key in not_keys.items()}
    )
    return cases


def storage_cases():
    def extents(*items, nbytes=24):
        return one(TENSOR, [[nbytes, 0, -1, list(items)]])

    return {
        "nbytes_negative": (one(TENSOR, [changed(STORAGE, {(0,): -1})]), MALFORMED),
        "nbytes_2_63": (one(TENSOR, [changed(STORAGE, {(0,): 2**63})]), MALFORMED),
        "device_kind_11": (one(TENSOR, [changed(STORAGE, {(1,): 11})]), MALFORMED),
        "device_kind_negative": (one(TENSOR, [changed(STORAGE, {(1,): -1})]), MALFORMED),
        "device_index_minus_2": (one(TENSOR, [changed(STORAGE, {(2,): -2})]), MALFORMED),
        "storage_3_items": (one(TENSOR, [STORAGE[:3]]), MALFORMED),
        "storage_5_items": (one(TENSOR, [[*STORAGE, None]]), MALFORMED),
        "extents_null_of_none": (
            one(changed(TENSOR, {(5,): [0]}), [[0, 0, -1, None]]),
            NOT_CANONICAL,
        ),
        "extents_whole": (extents([0, 24]), NOT_CANONICAL),
        "extent_1_item": (extents([0]), MALFORMED),
        "extent_4_items": (extents([0, 4, [2, 8], 0]), MALFORMED),
        "extent_levels_null": (extents([0, 4, None]), MALFORMED),
        "extent_levels_empty": (extents([0, 4, []]), MALFORMED),
        "extent_levels_odd": (extents([0, 4, [2, 8, 2]]), MALFORMED),
        "extent_length_0": (extents([0, 0]), MALFORMED),
        "extent_length_negative": (extents([0, -4]), MALFORMED),
        "extent_offset_negative": (extents([-4, 4]), MALFORMED),
        "extent_outside": (extents([0, 25]), OUT_OF_BOUNDS),
        "extent_outside_by_offset": (extents([21, 4]), OUT_OF_BOUNDS),
        "extent_after_end": (extents([24, 1]), OUT_OF_BOUNDS),
        "extent_of_empty_storage": (extents([0, 1], nbytes=0), OUT_OF_BOUNDS),
        "extent_overflow": (extents([2**63 - 1, 2**63 - 1]), OUT_OF_BOUNDS),
        "extent_length_2_63": (extents([0, 2**63]), MALFORMED),
        "extent_strided_outside": (extents([0, 4, [3, 11]]), OUT_OF_BOUNDS),
        "extent_strided_outside_by_1": (extents([1, 4, [3, 10]]), OUT_OF_BOUNDS),
        "extent_two_levels_outside": (extents([0, 2, [2, 20, 2, 4]]), OUT_OF_BOUNDS),
        "extent_level_overflow_64": (extents([0, 1, [2**32 + 1, 2**32]]), OUT_OF_BOUNDS),
        "extent_level_overflow_63": (extents([0, 1, [3, 2**62]]), OUT_OF_BOUNDS),
        "extent_level_overflow_wraps": (extents([0, 8, [2**61 + 1, 8]]), OUT_OF_BOUNDS),
        "extent_level_overflow_max": (extents([0, 1, [2**63 - 1, 2**63 - 1]]), OUT_OF_BOUNDS),
        "extent_level_count_0": (extents([0, 4, [0, 8]]), MALFORMED),
        "extent_level_count_1": (extents([0, 4, [1, 8]]), MALFORMED),
        "extent_level_count_negative": (extents([0, 4, [-2, 8]]), MALFORMED),
        "extent_level_stride_0": (extents([0, 4, [2, 0]]), MALFORMED),
        "extent_level_stride_negative": (extents([0, 4, [2, -8]]), MALFORMED),
        "extent_level_stride_small": (extents([0, 4, [2, 3]]), MALFORMED),
        "extent_outer_stride_small": (extents([0, 2, [2, 5, 2, 4]]), MALFORMED),
        "extent_levels_inner_first": (extents([0, 2, [2, 4, 2, 12]]), MALFORMED),
        "extent_level_stride_0_at_end": (extents([20, 4, [2, 0]]), MALFORMED),
        "extents_descending": (extents([8, 4], [0, 4]), NOT_CANONICAL),
        "extents_touching": (extents([0, 4], [4, 4]), NOT_CANONICAL),
        "extents_overlapping": (extents([0, 8], [4, 8]), NOT_CANONICAL),
        "extents_equal": (extents([0, 4], [0, 4]), NOT_CANONICAL),
        "extents_touching_around_levels": (extents([0, 4], [2, 1, [2, 4]], [4, 4]), NOT_CANONICAL),
        "device_index_2_31": (one(TENSOR, [changed(STORAGE, {(2,): 2**31})]), MALFORMED),
        "extents_descending_late": (extents([0, 4], [8, 4], [7, 4]), NOT_CANONICAL),
        "storage_unused": (one(TENSOR, [STORAGE, STORAGE]), NOT_CANONICAL),
        "storage_unused_alone": (one(None, [STORAGE]), NOT_CANONICAL),
        "storages_out_of_order": (
            one([8, changed(TENSOR, {(1,): 1}), TENSOR], [STORAGE, STORAGE]),
            NOT_CANONICAL,
        ),
        "storage_not_in_table": (one(changed(TENSOR, {(1,): 1}), [STORAGE]), OUT_OF_BOUNDS),
        "storage_not_in_empty_table": (one(TENSOR), OUT_OF_BOUNDS),
        "storage_2_32": (one(changed(TENSOR, {(1,): 2**32}), [STORAGE]), OUT_OF_BOUNDS),
        "storage_negative": (one(changed(TENSOR, {(1,): -1}), [STORAGE]), MALFORMED),
    }


def tensor_cases():
    def tensor(changes, nbytes=24):
        return one(
            changed(TENSOR, {(i,): item for i, item in changes.items()}), [[nbytes, 0, -1, None]]
        )

    return {
        "tensor_6_items": (one(TENSOR[:6], [STORAGE]), MALFORMED),
        "tensor_8_items": (one([*TENSOR, None], [STORAGE]), MALFORMED),
        "dtype_46": (tensor({2: 46}), MALFORMED),
        "dtype_2_40": (tensor({2: 2**40}), MALFORMED),
        "dtype_negative": (tensor({2: -1}), MALFORMED),
        "flags_8": (tensor({3: 8}), MALFORMED),
        "flags_2_32": (tensor({3: 2**32}), MALFORMED),
        "offset_negative": (tensor({4: -1}), MALFORMED),
        "size_negative": (tensor({5: [2, -3]}), MALFORMED),
        "stride_negative": (tensor({6: [3, -1]}), MALFORMED),
        "strides_too_few": (tensor({6: [1]}), MALFORMED),
        "strides_too_many": (tensor({6: [1, 2, 3]}), MALFORMED),
        "strides_contiguous": (tensor({6: [3, 1]}), NOT_CANONICAL),
        "strides_contiguous_zero_dim": (tensor({5: [], 6: []}), NOT_CANONICAL),
        "strides_contiguous_zero_size": (tensor({5: [3, 0], 6: [1, 1]}), NOT_CANONICAL),
        "strides_contiguous_size_1": (tensor({5: [1, 3], 6: [3, 1]}), NOT_CANONICAL),
        "element_outside": (tensor({}, nbytes=23), OUT_OF_BOUNDS),
        "element_outside_by_offset": (tensor({4: 1}), OUT_OF_BOUNDS),
        "element_outside_by_stride": (tensor({6: [4, 1]}), OUT_OF_BOUNDS),
        "element_outside_zero_dim": (tensor({4: 6, 5: []}), OUT_OF_BOUNDS),
        "element_outside_of_empty": (
            one(changed(TENSOR, {(5,): []}), [[0, 0, -1, []]]),
            OUT_OF_BOUNDS,
        ),
        "sizes_overflow": (tensor({5: [2**40, 2**40]}), OUT_OF_BOUNDS),
        "sizes_overflow_to_0": (tensor({5: [2**32, 2**32]}), OUT_OF_BOUNDS),
        "sizes_overflow_expanded": (tensor({5: [2**40, 2**40], 6: [0, 0]}), OUT_OF_BOUNDS),
        "size_bytes_overflow": (tensor({5: [2**62]}), OUT_OF_BOUNDS),
        "size_2_63": (tensor({5: [2**63]}), MALFORMED),
        "offset_bytes_overflow": (tensor({4: 2**62}), OUT_OF_BOUNDS),
        "offset_overflow": (tensor({4: 2**63 - 1}), OUT_OF_BOUNDS),
        "offset_2_63": (tensor({4: 2**63}), MALFORMED),
        "offset_bytes_overflow_no_elements": (tensor({4: 2**62, 5: [0]}), OUT_OF_BOUNDS),
        "stride_overflow": (tensor({6: [2**63 - 1, 2**63 - 1]}), OUT_OF_BOUNDS),
        "stride_overflow_to_0": (tensor({5: [5, 2], 6: [2**62, 1]}), OUT_OF_BOUNDS),
    }


def dtensor_cases():
    def dtensor(changes, mesh=MESH, meshes=None):
        return one(changed(DTENSOR, changes), [STORAGE], [mesh] if meshes is None else meshes)

    def mesh(changes):
        return dtensor({}, changed(MESH, {(i,): item for i, item in changes.items()}))

    other = [0, [2], [0, 1], None]
    return {
        "dtensor_7_items": (one(DTENSOR[:7], [STORAGE], [MESH]), MALFORMED),
        "dtensor_9_items": (one([*DTENSOR, None], [STORAGE], [MESH]), MALFORMED),
        "mesh_not_in_table": (dtensor({(1,): 1}), OUT_OF_BOUNDS),
        "mesh_not_in_empty_table": (dtensor({}, meshes=[]), OUT_OF_BOUNDS),
        "mesh_unused": (dtensor({}, meshes=[MESH, other]), NOT_CANONICAL),
        "mesh_twice": (
            one([8, DTENSOR, changed(DTENSOR, {(1,): 1})], [STORAGE], [MESH, MESH]),
            NOT_CANONICAL,
        ),
        "meshes_out_of_order": (
            one([8, changed(DTENSOR, {(1,): 1}), DTENSOR], [STORAGE], [MESH, other]),
            NOT_CANONICAL,
        ),
        "mesh_3_items": (dtensor({}, MESH[:3]), MALFORMED),
        "mesh_no_sizes": (dtensor({(2,): []}, [0, [], [0], []]), MALFORMED),
        "mesh_size_0": (mesh({1: [0], 2: []}), MALFORMED),
        "mesh_ranks_too_few": (mesh({2: [0]}), MALFORMED),
        "mesh_ranks_too_many": (mesh({2: [0, 1, 2]}), MALFORMED),
        "mesh_rank_negative": (mesh({2: [0, -1]}), MALFORMED),
        "mesh_names_too_few": (mesh({3: []}), MALFORMED),
        "mesh_names_too_many": (mesh({3: ["a", "b"]}), MALFORMED),
        "mesh_device_kind_11": (mesh({0: 11}), MALFORMED),
        "placements_too_few": (dtensor({(2,): []}), MALFORMED),
        "placements_too_many": (dtensor({(2,): [[0], [0]]}), MALFORMED),
        "placement_reduction_zero_byte": (dtensor({(2,): [[3, "a\0b"]]}), MALFORMED),
        "mesh_name_zero_byte": (mesh({3: ["a\0b"]}), MALFORMED),
        "placement_empty": (dtensor({(2,): [[]]}), MALFORMED),
        "placement_kind_4": (dtensor({(2,): [[4]]}), MALFORMED),
        "placement_replicate_2_items": (dtensor({(2,): [[0, 0]]}), MALFORMED),
        "placement_shard_1_item": (dtensor({(2,): [[1]]}), MALFORMED),
        "placement_shard_3_items": (dtensor({(2,): [[1, 0, 2]]}), MALFORMED),
        "placement_strided_2_items": (dtensor({(2,): [[2, 0]]}), MALFORMED),
        "placement_partial_1_item": (dtensor({(2,): [[3]]}), MALFORMED),
        "placement_dim_negative": (dtensor({(2,): [[1, -1]]}), MALFORMED),
        "placement_dim_outside": (dtensor({(2,): [[1, 2]]}), OUT_OF_BOUNDS),
        "placement_dim_2_32": (dtensor({(2,): [[1, 2**32]]}), OUT_OF_BOUNDS),
        "placement_strided_dim_outside": (dtensor({(2,): [[2, 2, 2]]}), OUT_OF_BOUNDS),
        "split_factor_0": (dtensor({(2,): [[2, 0, 0]]}), MALFORMED),
        "split_factor_negative": (dtensor({(2,): [[2, 0, -1]]}), MALFORMED),
        "dtensor_dtype_46": (dtensor({(3,): 46}), MALFORMED),
        "dtensor_flags_2": (dtensor({(4,): 2}), MALFORMED),
        "dtensor_size_negative": (dtensor({(5,): [4, -3]}), MALFORMED),
        "dtensor_sizes_overflow": (dtensor({(5,): [2**40, 2**40]}), OUT_OF_BOUNDS),
        "dtensor_strides_contiguous": (dtensor({(6,): [3, 1]}), NOT_CANONICAL),
        "dtensor_strides_too_few": (dtensor({(6,): [1]}), MALFORMED),
        "dtensor_local_dtype": (dtensor({(3,): 5}), MALFORMED),
        "dtensor_local_dimensions": (dtensor({(7, 5): [6]}), MALFORMED),
        "dtensor_local_none": (dtensor({(7,): None}), MALFORMED),
        "dtensor_local_list": (dtensor({(7,): [8, 1, 2, 3, 4, 5, 6]}), MALFORMED),
        "dtensor_local_dtensor": (dtensor({(7,): DTENSOR}), MALFORMED),
        "dtensor_local_outside": (dtensor({(7, 4): 1}), OUT_OF_BOUNDS),
    }


def sharded_cases():
    def sharded(changes):
        return one(changed(SHARDED, changes), [STORAGE])

    enumerable = [2, [BOX]]
    return {
        "sharded_7_items": (one(SHARDED[:7], [STORAGE]), MALFORMED),
        "sharded_9_items": (one([*SHARDED, None], [STORAGE]), MALFORMED),
        "sharded_dtype_46": (sharded({(1,): 46}), MALFORMED),
        "sharded_flags_4": (sharded({(2,): 4}), MALFORMED),
        "sharded_format_4": (sharded({(3,): 4}), MALFORMED),
        "sharded_size_negative": (sharded({(4,): [4, -3]}), MALFORMED),
        "sharded_sizes_overflow": (sharded({(4,): [2**40, 2**40]}), OUT_OF_BOUNDS),
        "shard_box_outside": (sharded({(5, 0, 0): [3, 0]}), OUT_OF_BOUNDS),
        "shard_box_after_end": (sharded({(5, 0, 0): [5, 0]}), OUT_OF_BOUNDS),
        "shard_box_overflow": (sharded({(5, 0, 0): [2**63 - 1, 0]}), OUT_OF_BOUNDS),
        "shard_offsets_too_few": (sharded({(5, 0, 0): [0]}), MALFORMED),
        "shard_sizes_too_many": (sharded({(5, 0, 1): [2, 3, 1]}), MALFORMED),
        "shard_offset_negative": (sharded({(5, 0, 0): [-1, 0]}), MALFORMED),
        "shard_rank_minus_2": (sharded({(5, 0, 2): -2}), MALFORMED),
        "shard_device_kind_11": (sharded({(5, 0, 3): 11}), MALFORMED),
        "shard_device_index_minus_2": (sharded({(5, 0, 4): -2}), MALFORMED),
        "shard_5_items": (sharded({(5, 0): BOX}), MALFORMED),
        "shard_tensor_other_sizes": (sharded({(5, 0, 5, 5): [3, 2]}), MALFORMED),
        "shard_tensor_other_dimensions": (sharded({(5, 0, 5, 5): [6]}), MALFORMED),
        "shard_tensor_other_dtype": (sharded({(5, 0, 5, 2): 5}), MALFORMED),
        "shard_tensor_none": (sharded({(5, 0, 5): None}), MALFORMED),
        "shard_tensor_outside": (sharded({(5, 0, 5, 4): 1}), OUT_OF_BOUNDS),
        "info_box_outside": (sharded({(6, 0, 1): [2, 4]}), OUT_OF_BOUNDS),
        "info_box_overflow": (sharded({(6, 0, 0): [0, 2**63 - 1]}), OUT_OF_BOUNDS),
        "info_6_items": (sharded({(6, 0): [*BOX, None]}), MALFORMED),
        "info_rank_minus_2": (sharded({(6, 0, 2): -2}), MALFORMED),
        "sharding_kind_0": (sharded({(7, 0): 0}), MALFORMED),
        "sharding_kind_3": (sharded({(7, 0): 3}), MALFORMED),
        "sharding_chunk_2_items": (sharded({(7,): [1, 0]}), MALFORMED),
        "sharding_chunk_dim_2_63": (sharded({(7, 1): 2**63}), MALFORMED),
        "sharding_place_2_items": (sharded({(7, 2, 0): [0, 0]}), MALFORMED),
        "sharding_place_rank_minus_2": (sharded({(7, 2, 0, 0): -2}), MALFORMED),
        "sharding_place_device_kind_11": (sharded({(7, 2, 0, 1): 11}), MALFORMED),
        "sharding_enumerable_3_items": (sharded({(7,): [*enumerable, []]}), MALFORMED),
        "sharding_enumerable_box_outside": (
            sharded({(7,): changed(enumerable, {(1, 0, 0): [3, 0]})}),
            OUT_OF_BOUNDS,
        ),
    }


def bad_cases():
    cases = {}
    for part in (
        type_cases,
        whole_cases,
        form_cases,
        count_cases,
        depth_cases,
        value_cases,
        storage_cases,
        tensor_cases,
        dtensor_cases,
        sharded_cases,
    ):
        for name, case in part().items():
            assert name not in cases, name
            cases[name] = case
    return cases
