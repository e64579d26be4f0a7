"""Bad checkpoint files, each with the expected status and the path in its error."""

import json
import struct
import zlib

from wire import cbor, manifest

BAD, OUT, CUT = "WHERRY_MALFORMED", "WHERRY_OUT_OF_BOUNDS", "WHERRY_TRUNCATED"
TRAILING, TWICE, LIMIT = "WHERRY_TRAILING_BYTES", "WHERRY_REPEATED_KEY", "WHERRY_LIMIT"
UNSUPPORTED, VERSION, CORRUPT = "WHERRY_UNSUPPORTED", "WHERRY_BAD_VERSION", "WHERRY_CORRUPT"


# ---- safetensors


def tensors(header, data=b"", length=None):
    """A safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def about(dtype="U8", shape=(4,), begin=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def safetensors_json_cases():
    entry = json.dumps(about()).encode()
    return {
        "json_not_an_object": (tensors(b"[1]    "), BAD, ""),
        "json_cut": (tensors(b'{"a":'), BAD, ""),
        "json_no_value": (tensors(b'{"a"}'), BAD, ""),
        "json_no_comma": (tensors(b'{"a":' + entry + b' "b":' + entry + b"}"), BAD, ""),
        "json_comma_behind": (tensors(b'{"a":' + entry + b",}", bytes(4)), BAD, ""),
        "json_name_no_text": (tensors(b"{1:" + entry + b"}"), BAD, ""),
        "json_more_behind": (tensors(b'{"a":' + entry + b"} x", bytes(4)), BAD, ""),
        "json_nan": (
            tensors(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)),
            BAD,
            "",
        ),
        "json_single_quotes": (tensors(b"{'a':" + entry + b"}", bytes(4)), BAD, ""),
        "json_deep": (tensors(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"), LIMIT, ""),
        "json_large_value": (tensors(b'{"a":"' + b"x" * 70000 + b'"}'), LIMIT, ""),
        "json_zero_in_name": (tensors(b'{"a\\u0000b":' + entry + b"}", bytes(4)), BAD, ""),
        "json_zero_byte": (tensors(b'{"a":\0' + entry + b"}", bytes(4)), BAD, ""),
        "json_not_utf8": (tensors(b'{"\xff":' + entry + b"}", bytes(4)), BAD, ""),
        "json_lone_surrogate": (tensors(b'{"\\ud800":' + entry + b"}", bytes(4)), BAD, ""),
        "json_big_number": (
            tensors(
                b'{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]}}',
                bytes(4),
            ),
            BAD,
            "",
        ),
        "name_twice": (tensors(b'{"a":' + entry + b',"a":' + entry + b"}", bytes(4)), TWICE, "a"),
        "name_twice_escaped": (
            tensors(b'{"a":' + entry + b',"\\u0061":' + entry + b"}", bytes(4)),
            TWICE,
            "a",
        ),
        "field_twice": (
            tensors(
                b'{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}', bytes(4)
            ),
            TWICE,
            "",
        ),
        "metadata_twice": (tensors(b'{"__metadata__":{},"__metadata__":{}}'), TWICE, ""),
        "metadata_name_twice": (tensors(b'{"__metadata__":{"a":"b","a":"c"}}'), TWICE, ""),
        "metadata_no_text": (tensors({"__metadata__": {"a": 1}}), BAD, ""),
        "metadata_a_list": (tensors({"__metadata__": []}), BAD, ""),
    }


def safetensors_cases():
    def field(**changes):
        entry = about()
        entry.update(changes)
        return tensors(
            {"a": {key: item for key, item in entry.items() if item is not None}}, bytes(4)
        )

    two = {"a": about(), "b": about(begin=4, end=8)}
    cases = {
        "header_cut": (struct.pack("<Q", 100) + b"{" + bytes(20), CUT, ""),
        "header_huge": (struct.pack("<Q", 2**63) + b"{}", LIMIT, ""),
        "header_over_limit": (struct.pack("<Q", 100_000_001) + b"{}", LIMIT, ""),
        "header_all_ones": (b"\xff" * 8 + b"{}", LIMIT, ""),
        "header_short": (tensors({"a": about()}, bytes(4), length=20), BAD, ""),
        "dtype_missing": (field(dtype=None), BAD, "a"),
        "dtype_number": (field(dtype=3), BAD, "a"),
        "dtype_unknown": (field(dtype="F6_E2M3"), UNSUPPORTED, "a"),
        "shape_missing": (field(shape=None), BAD, "a"),
        "shape_negative": (field(shape=[-4]), BAD, "a"),
        "shape_fraction": (field(shape=[4.0]), BAD, "a"),
        "shape_text": (field(shape="4"), BAD, "a"),
        "shape_65_dimensions": (field(shape=[1] * 64 + [4]), LIMIT, "a"),
        "shape_too_large": (field(shape=[2**62, 4]), OUT, "a"),
        "shape_wraps": (field(shape=[2**32, 2**32, 4], dtype="U8"), OUT, "a"),
        "shape_other_size": (field(shape=[5]), OUT, "a"),
        "dtype_other_size": (field(dtype="F32"), OUT, "a"),
        "offsets_missing": (field(data_offsets=None), BAD, "a"),
        "offsets_three": (field(data_offsets=[0, 4, 4]), BAD, "a"),
        "offsets_backwards": (field(data_offsets=[4, 0]), BAD, "a"),
        "offsets_negative": (field(data_offsets=[-4, 0]), BAD, "a"),
        "offsets_huge": (field(data_offsets=[2**63 - 5, 2**63 - 1]), OUT, "a"),
        "entry_a_list": (tensors({"a": [1]}), BAD, "a"),
        "overlap": (tensors({"a": about(), "b": about(begin=2, end=6)}, bytes(6)), OUT, "b"),
        "same_bytes": (tensors({"a": about(), "b": about()}, bytes(4)), OUT, "b"),
        "hole": (tensors({"a": about(), "b": about(begin=5, end=9)}, bytes(9)), OUT, "b"),
        "hole_at_the_beginning": (tensors({"a": about(begin=1, end=5)}, bytes(5)), OUT, "a"),
        "data_cut": (tensors(two, bytes(7)), CUT, "b"),
        "data_missing": (tensors(two), CUT, "a"),
        "data_longer": (tensors(two, bytes(9)), TRAILING, ""),
        "data_without_tensors": (tensors({}, bytes(1)), TRAILING, ""),
        "odd_name": (tensors({'x\n"\x01': about(end=5)}, bytes(5)), OUT, '["x\\n\\"\\x01"]'),
        "four_bits_odd": (tensors({"a": about("F4", (3,), 0, 1)}, bytes(1)), UNSUPPORTED, "a"),
    }
    return cases | safetensors_json_cases()


def patched(data, offset, replacement):
    return data[:offset] + replacement + data[offset + len(replacement) :]


# ---- Wherry's own


def native(items, content, flags=0, digests=b"", version=1, **changes):
    """A file in Wherry's own format, with `changes` to the numbers of its header."""
    text = items if isinstance(items, bytes) else cbor(items)
    begin = -(-(64 + len(text) + len(digests)) // 4096) * 4096
    header = {
        "manifest": len(text),
        "data": begin,
        "file": begin + len(content),
        "chunks": len(digests) // 16,
    } | changes
    front = b"\x89WHF\r\n\x1a\n" + struct.pack(
        ">IIQQQQ",
        version,
        flags,
        header["manifest"],
        header["data"],
        header["file"],
        header["chunks"],
    )
    front += struct.pack(">I", zlib.crc32(front + text) ^ changes.get("flip", 0)) + bytes(12)
    return (front + text + digests).ljust(begin, b"\0") + content


def state(nbytes=6, sizes=(2, 3)):
    """{"w": a tensor of bytes}."""
    return manifest([10, "w", [12, 0, 1, 0, 0, list(sizes), None]], [[nbytes, 0, -1, None]])


def native_cases():
    good = native(state(), b"abcdef")
    return {
        "header_cut": (good[:40], CUT, ""),
        "version": (native(state(), b"abcdef", version=2), VERSION, ""),
        "flags": (native(state(), b"abcdef", flags=2), VERSION, ""),
        "checksum": (native(state(), b"abcdef", flip=1), CORRUPT, ""),
        "reserved": (patched(good, 60, b"\1"), CORRUPT, ""),
        "manifest_flipped": (patched(good, 70, b"\0"), CORRUPT, ""),
        "manifest_huge": (native(state(), b"abcdef", manifest=2**62), LIMIT, ""),
        "manifest_beyond": (native(state(), b"abcdef", manifest=8000), OUT, ""),
        "manifest_malformed": (native(b"\xa0", b""), BAD, ""),
        "manifest_tensor_outside": (native(state(sizes=(2, 4)), b"abcdef"), OUT, ""),
        "manifest_version": (native(["wherry", 2, 0], b""), VERSION, ""),
        "cut": (good[:-1], CUT, ""),
        "longer": (good + b"x", TRAILING, ""),
        "storage_larger": (native(state(nbytes=7, sizes=(7,)), b"abcdef"), OUT, ""),
        "storage_huge": (native(state(nbytes=2**62, sizes=(2**62,)), b"abcdef"), LIMIT, ""),
        "data_elsewhere": (native(state(), b"abcdef", data=0), OUT, ""),
        "data_beyond": (native(state(), b"abcdef", data=2**63), OUT, ""),
        "digests_not_said": (native(state(), b"abcdef", digests=bytes(16)), BAD, ""),
        "digests_missing": (native(state(), b"abcdef", flags=1), BAD, ""),
        "digests_too_many": (native(state(), b"abcdef", flags=1, chunks=2**60), BAD, ""),
    }


# ---- all of them


def index_cases():
    """Indices of shards. Their folder has good.safetensors."""

    def index(entries, **more):
        return json.dumps({"metadata": {"total_size": 4}, "weight_map": entries} | more).encode()

    return {
        "no_map": (b'{"metadata":{}}', BAD, ""),
        "map_a_list": (b'{"weight_map":[]}', BAD, ""),
        "map_twice": (b'{"weight_map":{"a":"good.safetensors"},"weight_map":{}}', TWICE, ""),
        "name_twice": (
            b'{"weight_map":{"a":"good.safetensors","a":"good.safetensors"}}',
            TWICE,
            "a",
        ),
        "file_a_number": (index({"a": 1}), BAD, "a"),
        "file_missing": (index({"a": "none.safetensors"}), "WHERRY_SYSTEM", ""),
        "file_above": (index({"a": "../good.safetensors"}), BAD, ""),
        "file_absolute": (index({"a": "/etc/passwd"}), BAD, ""),
        "file_dots": (index({"a": ".."}), BAD, ""),
        "file_empty": (index({"a": ""}), BAD, ""),
        "file_not_safetensors": (index({"a": "file_empty.safetensors.index.json"}), LIMIT, ""),
        "tensor_missing": (index({"a": "good.safetensors", "b": "good.safetensors"}), BAD, "b"),
        "not_json": (b"weights", BAD, ""),
        "more_behind": (index({"a": "good.safetensors"}) + b"]", BAD, ""),
    }


def bad_files():
    """{name with its suffix: (bytes, status, path)}"""
    kinds = {
        "safetensors": safetensors_cases(),
        "wherry": native_cases(),
        "safetensors.index.json": index_cases(),
    }
    files = {
        f"{name}.{ending}": case for ending, cases in kinds.items() for name, case in cases.items()
    }
    files["unknown.bin"] = (b"some other file", BAD, "")
    files["empty.safetensors"] = (b"", BAD, "")
    return files


def good_files():
    """{name: bytes}. Every future version must read them."""
    entries = [("a", about("F32", (1,), 0, 4)), ("b", about("BF16", (2, 1), 4, 8))]
    header = json.dumps(dict(entries) | {"__metadata__": {"format": "pt"}})
    return {
        "plain.safetensors": tensors(header.encode(), b"\0\0\x80\x3f\x80\x3f\0\x40"),
        "no_metadata.safetensors": tensors(
            b'{"__metadata__":null,"a":' + json.dumps(about()).encode() + b"}", bytes(4)
        ),
        "plain.wherry": native(state(), b"abcdef"),
    }
