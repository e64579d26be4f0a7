"""The plain decoder on the golden manifests and on the examples of docs/wire-format.md."""

import itertools
import json
import pathlib
import subprocess
import sys

import pytest
from manifest_model import Extent, element_bytes
from plain_manifest import Limits, ManifestError, decode, to_json

TESTS = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden"
GOOD = sorted((GOLDEN / "good").glob("*.bin"))
BAD = [line.split("\t") for line in (GOLDEN / "bad" / "expected.tsv").read_text().splitlines()]
DOCUMENT = TESTS.parent / "docs" / "wire-format.md"

sys.setrecursionlimit(10000)  # The deep manifests need this.

good_files = pytest.mark.parametrize("path", GOOD, ids=[path.stem for path in GOOD])


def status_of(data, limits=Limits()):
    """The status that the decoder gives."""
    try:
        decode(data, limits)
    except ManifestError as error:
        assert 0 <= error.offset <= len(data)
        return error.status_name
    return "WHERRY_OK"


def test_files_are_what_make_writes():
    done = subprocess.run(
        [sys.executable, "-B", GOLDEN / "make.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_there_are_cases():
    assert len(GOOD) >= 25 and len(BAD) >= 60


@good_files
def test_good(path):
    assert to_json(decode(path.read_bytes())) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("name, status", BAD, ids=[name for name, _ in BAD])
def test_bad(name, status):
    assert status_of((GOLDEN / "bad" / f"{name}.bin").read_bytes()) == status


def test_every_status_occurs():
    rows = DOCUMENT.read_text().split("## Errors of a decoder")[1].split("## ")[0]
    named = {part for part in rows.split("`") if part.startswith("WHERRY_")}
    assert named == {status for _, status in BAD}


@good_files
def test_truncated(path):
    data = path.read_bytes()
    sizes = (
        range(len(data))
        if len(data) < 300
        else [*range(0, len(data), len(data) // 100), len(data) - 1]
    )
    wrong = [
        (size, status_of(data[:size]))
        for size in sizes
        if status_of(data[:size]) != "WHERRY_TRUNCATED"
    ]
    assert not wrong


@good_files
def test_trailing(path):
    assert status_of(path.read_bytes() + b"\0") == "WHERRY_TRAILING_BYTES"


@good_files
def test_changed_bytes_never_crash(path):
    """Changes every byte of the small manifests: the decoder gives a listed status or succeeds."""
    data = path.read_bytes()
    for at, mask in itertools.product(range(min(len(data), 300)), (0x01, 0x20, 0x80, 0xFF)):
        status_of(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])


@good_files
def test_chunks_are_the_space(path):
    """The pieces of all chunks, end to end, are the runs, end to end."""
    manifest = decode(path.read_bytes())
    if manifest.chunk_count > 1000:
        chunks = [0, 1, manifest.chunk_count - 1]
        assert all(
            sum(piece[2] for piece in manifest.pieces(c)) == manifest.chunk_bytes for c in chunks
        )
        return
    pieces = [piece for chunk in range(manifest.chunk_count) for piece in manifest.pieces(chunk)]
    assert joined(pieces) == joined(manifest.runs())
    begins = [manifest.chunk_begin(chunk) for chunk in range(manifest.chunk_count)]
    plain = [c * manifest.chunk_bytes for c in range(manifest.chunks_of(0))]
    plain += [manifest.parts[0] + c * manifest.chunk_bytes for c in range(manifest.chunks_of(1))]
    assert all(0 <= position - begin <= 15 for position, begin in zip(plain, begins, strict=True))


def joined(runs):
    """Merges runs that follow each other without a gap."""
    merged = []
    for storage, offset, length in runs:
        if merged and merged[-1][0] == storage and sum(merged[-1][1:]) == offset:
            merged[-1][2] += length
        else:
            merged.append([storage, offset, length])
    return merged


@good_files
def test_elements_lie_within_extents(path):
    """Checks parts of the golden files that a decoder may skip."""
    manifest = decode(path.read_bytes())
    if manifest.space > 1 << 20:
        assert all(storage.extents == [Extent(0, storage.nbytes)] for storage in manifest.storages)
        return
    covered = {
        (storage, byte)
        for storage, offset, length in manifest.runs()
        for byte in range(offset, offset + length)
    }
    for tensor in manifest.tensors:
        size = element_bytes(tensor.dtype)
        sizes = [
            count if stride else min(count, 1)
            for count, stride in zip(tensor.sizes, tensor.strides)
        ]
        for index in itertools.product(*map(range, sizes)):
            first = (
                tensor.offset + sum(i * stride for i, stride in zip(index, tensor.strides))
            ) * size
            assert all((tensor.storage, first + byte) in covered for byte in range(size))


def test_limits():
    two_deep, text = bytes.fromhex("8208 8108"), bytes.fromhex("63616263")
    around = bytes.fromhex("87 66776865727279 01 191000 20 80 80")
    assert status_of(around + two_deep, Limits(depth=2)) == "WHERRY_OK"
    assert status_of(around + two_deep, Limits(depth=1)) == "WHERRY_LIMIT"
    assert status_of(around + two_deep, Limits(values=2)) == "WHERRY_OK"
    assert status_of(around + two_deep, Limits(values=1)) == "WHERRY_LIMIT"
    assert (
        status_of(around + text, Limits(string_bytes=6)) == "WHERRY_OK"
    )  # The magic text is the longest string.
    assert (
        status_of(around + bytes.fromhex("6761626364656667"), Limits(string_bytes=6))
        == "WHERRY_LIMIT"
    )
    assert status_of(around + text, Limits(manifest_bytes=len(around) + 4)) == "WHERRY_OK"
    assert status_of(around + text, Limits(manifest_bytes=len(around) + 3)) == "WHERRY_LIMIT"
    tensor = (GOLDEN / "good" / "contiguous.bin").read_bytes()
    assert status_of(tensor, Limits(total_bytes=24)) == "WHERRY_OK"
    assert status_of(tensor, Limits(total_bytes=23)) == "WHERRY_LIMIT"


def examples():
    """The bytes of the document's worked examples."""
    section = DOCUMENT.read_text().split("## Worked examples")[1].split("\n## ")[0]
    blocks = [block.split("```")[0] for block in section.split("```hex\n")[1:]]
    return [
        bytes.fromhex("".join(line.split(";")[0] for line in block.splitlines()))
        for block in blocks
    ]


def tensor(sizes, strides, flags=0):
    return {
        "storage": 0,
        "dtype": "float32",
        "flags": flags,
        "offset": 0,
        "sizes": sizes,
        "strides": strides,
    }


EXAMPLES = [
    {"rank": -1, "storages": [], "meshes": [], "root": {"dict": []}},
    {
        "rank": 0,
        "storages": [{"nbytes": 24, "device": ["cpu", -1], "extents": [[0, 24, []]]}],
        "meshes": [],
        "root": {"dict": [["w", {"tensor": tensor([2, 3], [3, 1], 1)}], ["step", 1000]]},
    },
    {
        "rank": -1,
        "storages": [{"nbytes": 16384, "device": ["cuda", 0], "extents": [[0, 16, [[2, 8192]]]]}],
        "meshes": [],
        "root": {
            "dict": [
                ["embed", {"tensor": tensor([2, 4], [2048, 1])}],
                ["head", {"tensor": tensor([4, 2], [1, 2048])}],
            ]
        },
    },
    {
        "rank": 1,
        "storages": [{"nbytes": 24, "device": ["cpu", -1], "extents": [[0, 24, []]]}],
        "meshes": [{"device": "cpu", "sizes": [2], "ranks": [0, 1], "names": ["dp"]}],
        "root": {
            "dtensor": {
                "mesh": 0,
                "placements": [["shard", 0]],
                "dtype": "float32",
                "flags": 0,
                "sizes": [4, 3],
                "strides": [3, 1],
                "local": tensor([2, 3], [3, 1]),
            }
        },
    },
]
PIECES = [[], [(0, 0, 24)], [(0, 0, 16), (0, 8192, 16)], [(0, 0, 24)]]


def test_examples_of_the_document():
    found = examples()
    assert len(found) == len(EXAMPLES) and len(found[0]) == 19
    for data, expected, pieces in zip(found, EXAMPLES, PIECES):
        manifest = decode(data)
        description = to_json(manifest)
        assert {key: description[key] for key in expected} == expected
        assert manifest.chunk_bytes == (4096 if len(pieces) == 2 else 4 << 20)
        assert manifest.chunk_count == min(1, len(pieces))
        assert [
            piece for chunk in range(manifest.chunk_count) for piece in manifest.pieces(chunk)
        ] == pieces
        assert all(status_of(data[:size]) == "WHERRY_TRUNCATED" for size in range(len(data)))
