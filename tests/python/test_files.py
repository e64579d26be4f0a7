"""Checkpoint files, against the safetensors library and a second reader of our own format."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import plain_file
import pytest
import safetensors
import safetensors.torch
import torch
from plain_manifest import ManifestError

TESTS = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("WHERRY_BUILD", TESTS.parent / "build"))
GOLDEN = TESTS / "golden" / "files"
TOOL = BUILD / "tests" / "file_tool"

TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


def tool(*arguments, status=None, **environment):
    """Runs file_tool. It must fail with `status` if one is given. Returns the lines that it
    prints."""
    done = subprocess.run(
        [TOOL, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    if status:
        assert done.returncode == 1 and done.stderr.split("\t")[0] == status, done.stderr
        return done.stderr.rstrip("\n").split("\t")
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def numbers(text):
    return [int(number) for number in text.split(",")] if text else []


def raw(tensor):
    return (
        tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    )


def torch_tensors(dtype):
    """Tensors of several shapes with random bytes; booleans are 0 and 1."""
    generator = torch.Generator().manual_seed(7)
    found = {}
    for number, shape in enumerate([(), (1,), (5,), (3, 4), (2, 0, 3), (2, 1, 3, 2)]):
        count = int(np.prod(shape, dtype=int))
        size = torch.empty(0, dtype=dtype).element_size()
        content = torch.randint(
            0,
            2 if dtype == torch.bool else 256,
            (count * size,),
            dtype=torch.uint8,
            generator=generator,
        )
        found[f'layer.{number}/ü"\\'] = content.view(dtype).reshape(shape)
    return found


def same_torch(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype and one[name].shape == other[name].shape
        assert raw(one[name]) == raw(other[name])


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_safetensors(tmp_path, dtype):
    tensors = torch_tensors(dtype)
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    safetensors.torch.save_file(tensors, theirs, {"format": "pt", "a\nb": "ü"})
    lines = tool("list", theirs)
    assert len(lines) == len(tensors) + 2
    for path, name, sizes, _, content in lines[:-2]:
        tensor = tensors[json.loads(path.strip("[]").replace("\\x", "\\u00"))]
        assert f"torch.{name}" == str(dtype)
        assert numbers(sizes) == list(tensor.shape) and bytes.fromhex(content) == raw(tensor)
    tool("convert", theirs, ours)
    same_torch(safetensors.torch.load_file(ours), tensors)
    with safetensors.safe_open(ours, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "a\nb": "ü"}


def test_four_bits(tmp_path):
    """Two numbers per byte. safetensors counts numbers; torch and Wherry count bytes."""
    tensor = torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2)
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    safetensors.torch.save_file({"w": tensor}, theirs)
    assert b'"shape":[2,6]' in theirs.read_bytes()
    assert tool("list", theirs) == [["w", "float4_e2m1fn_x2", "2,3", "3,1", "000102030405"]]
    tool("convert", theirs, ours)
    assert b'"shape":[2,6]' in ours.read_bytes() and ours.read_bytes().endswith(bytes(range(6)))


def test_all_dtypes_in_one_file(tmp_path):
    """Each tensor is aligned to its elements, whatever the order of the state."""
    tensors = {str(dtype): torch_tensors(dtype)['layer.3/ü"\\'] for dtype in TORCH_DTYPES}
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    safetensors.torch.save_file(tensors, theirs)
    tool("convert", theirs, ours)
    same_torch(safetensors.torch.load_file(ours), tensors)
    data = ours.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8 : 8 + length]).items():
        assert (8 + length + about["data_offsets"][0]) % tensors[name].element_size() == 0


def test_shards_of_ours(tmp_path):
    tensors = {f"layer.{i}": torch.arange(i, i + 100, dtype=torch.float32) for i in range(10)}
    whole, index = tmp_path / "whole.safetensors", tmp_path / "model.safetensors.index.json"
    safetensors.torch.save_file(tensors, whole, {"format": "pt"})
    tool("convert", whole, index, SHARD_BYTES="1200")
    text = json.loads(index.read_text())
    assert text["metadata"]["total_size"] == 4000
    assert sorted(set(text["weight_map"].values())) == [
        f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)
    ]
    found = {}
    for name, shard in text["weight_map"].items():
        with safetensors.safe_open(tmp_path / shard, "pt") as opened:
            found[name] = opened.get_tensor(name)
            assert opened.metadata() == {"format": "pt"}
    same_torch(found, tensors)
    again = tmp_path / "again.safetensors"
    tool("convert", index, again)
    same_torch(safetensors.torch.load_file(again), tensors)


def test_shards_of_theirs(tmp_path):
    tensors = {f"layer.{i}": torch.arange(i, i + 100, dtype=torch.int16) for i in range(4)}
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:1], names[1:])):
        safetensors.torch.save_file(
            {name: tensors[name] for name in part}, tmp_path / f"part{number}.safetensors"
        )
        weight_map |= {name: f"part{number}.safetensors" for name in part}
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {"total_size": 800}, "weight_map": weight_map}, indent=2)
    )
    assert [(line[0], bytes.fromhex(line[4])) for line in tool("list", index)] == [
        (f'["{name}"]', raw(tensors[name])) for name in names
    ]
    (tmp_path / "part1.safetensors").unlink()
    assert "part1.safetensors" in tool("list", index, status="WHERRY_SYSTEM")[3]


def test_ours_by_the_plain_reader(tmp_path):
    tensors = {
        str(dtype).removeprefix("torch."): torch_tensors(dtype)['layer.5/ü"\\']
        for dtype in TORCH_DTYPES
    }
    tensors["large"] = torch.arange(3 << 20, dtype=torch.float32)
    theirs, ours, back = (
        tmp_path / "theirs.safetensors",
        tmp_path / "ours.wherry",
        tmp_path / "back.safetensors",
    )
    safetensors.torch.save_file(tensors, theirs)
    tool("convert", theirs, ours)
    file = plain_file.read(ours.read_bytes())
    assert len(file.manifest.tensors) == len(tensors)
    by_size = {len(content): content for content in map(bytes, file.storages)}
    assert by_size[12 << 20] == raw(tensors["large"])
    assert sorted(
        file.bytes_of(tensor) for tensor in file.manifest.tensors if tensor.sizes != [3 << 20]
    ) == sorted(raw(tensor) for name, tensor in tensors.items() if name != "large")
    assert file.manifest.chunk_count == len(file.digests) == 4
    assert [plain_file.xxh3_128(file.chunk(number)) for number in range(4)] == file.digests
    tool("convert", ours, back)
    same_torch(safetensors.torch.load_file(back), tensors)


def test_golden_files_are_what_make_writes():
    done = subprocess.run(
        [sys.executable, "-B", TESTS / "golden" / "make_files.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


BAD = [line.split("\t") for line in (GOLDEN / "bad" / "expected.tsv").read_text().splitlines()]


@pytest.mark.parametrize(
    "name, status", [(name, status) for name, status, _ in BAD if name.endswith(".wherry")]
)
def test_bad_by_the_plain_reader(name, status):
    with pytest.raises((plain_file.FileError, ManifestError)) as caught:
        plain_file.read((GOLDEN / "bad" / name).read_bytes())
    assert caught.value.status_name == status


def test_bad_by_their_library():
    """The safetensors library refuses the same files as we do, except those in `ours_alone`."""
    ours_alone = {
        "json_large_value.safetensors",  # Both refuse these files, but for different reasons.
        "four_bits_odd.safetensors",
        "json_zero_in_name.safetensors",
        "metadata_name_twice.safetensors",
        "field_twice.safetensors",
        "shape_65_dimensions.safetensors",
        "name_twice.safetensors",
        "name_twice_escaped.safetensors",
        "metadata_twice.safetensors",
    }
    accepted = set()
    for name, _, _ in BAD:
        if name.endswith(".safetensors"):
            try:
                with safetensors.safe_open(GOLDEN / "bad" / name, "pt"):
                    accepted.add(name)
            except safetensors.SafetensorError:
                pass
    assert accepted <= ours_alone, accepted - ours_alone


def test_document(tmp_path):
    """The examples of docs/files.md compile; the first one runs."""
    blocks = (TESTS.parent / "docs" / "files.md").read_text().split("```c\n")[1:]
    assert len(blocks) == 2
    program = tmp_path / "convert"
    for number, block in enumerate(blocks):
        source = tmp_path / f"block{number}.c"
        source.write_text(block.split("```")[0])
        end = (
            ["-o", program, f"-L{BUILD}/src/file", f"-L{BUILD}/src", "-lwherry-file", "-lwherry"]
            if number == 0
            else ["-fsyntax-only"]
        )
        subprocess.run(
            [
                "cc",
                "-std=c17",
                "-Wall",
                "-Wextra",
                "-Werror",
                f"-I{TESTS.parent}/include",
                source,
                *end,
            ],
            check=True,
        )
    ours = tmp_path / "ours.safetensors"
    done = subprocess.run(
        [program, GOLDEN / "good" / "plain.safetensors", ours],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": f"{BUILD}/src/file:{BUILD}/src"},
    )
    assert done.returncode == 0 and "bfloat16[2, 1]" in done.stdout, done.stderr
    assert safetensors.torch.load_file(ours)["b"].tolist() == [[1.0], [2.0]]


def sparse_file(path, total, count):
    """A safetensors file whose tensors take no disk space."""
    each = total // count
    header = json.dumps(
        {
            f"layer.{i}": {
                "dtype": "U8",
                "shape": [each],
                "data_offsets": [i * each, (i + 1) * each],
            }
            for i in range(count)
        }
    ).encode()
    with open(path, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        out.truncate(8 + len(header) + each * count)


def open_once(path):
    """Seconds, and peak memory in KiB, of a process that opens a file."""
    begin = time.monotonic()
    ((peak,),) = tool("open", path)
    return time.monotonic() - begin, int(peak)


def test_large_file(tmp_path):
    """A file of 100 GiB opens as quickly as one of 100 MiB, in little memory."""
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    sparse_file(small, 100 << 20, 20000)
    sparse_file(large, 100 << 30, 20000)
    runs = [(open_once(small), open_once(large)) for _ in range(5)]
    seconds = [min(run[i][0] for run in runs) for i in range(2)]
    memory = [max(run[i][1] for run in runs) for i in range(2)]
    assert seconds[1] < 1.5 * seconds[0] + 1, seconds  # Reading all 100 GiB would take far longer.
    assert memory[1] < memory[0] + 2048 and memory[1] < 64 << 10, memory
