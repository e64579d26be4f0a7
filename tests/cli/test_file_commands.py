"""`wherry inspect`, also with --digest, and `wherry diff`."""

import json
import os
import pathlib
import re
import struct
import subprocess
import time

import pytest
from checkpoints import native, small, sparse, write_safetensors
from command import BYTES, FAILED, OK, RESOURCE, ROOT, USAGE, WHERRY, environment, start, wherry


@pytest.fixture
def model(tmp_path):
    return small(tmp_path / "model.safetensors")


def test_inspect(model):
    done = wherry("inspect", model)
    assert done.returncode == OK and done.stderr == ""
    assert done.stdout.splitlines() == [
        *(f"layers.{i}.weight  float32 [16, 8]" for i in range(4)),
        "head             bfloat16 [4]",
        "step             int64 []",
        '__metadata__.by  "a test"',
        "",
        f"{model}: 6 tensors, 2.0 KiB; safetensors, 1 file, {size_text(model)}",
    ]


def test_inspect_names_shared_storages(tmp_path):
    lines = wherry("inspect", two_formats(tmp_path)[0]).stdout.splitlines()
    shared = [line for line in lines if re.search(r", storage #\d+$", line)]
    assert len(shared) >= 2 and len({line.rsplit("#", 1)[1] for line in shared}) == 1
    assert any("float16" in line and "storage" not in line for line in lines)
    assert re.search(r": 5 tensors, .* in 2 storages; wherry, 1 file, ", lines[-1])


@pytest.mark.parametrize(
    "arguments, keys",
    [
        (["inspect"], {"name", "format", "files", "tensors", "storages", "bytes", "values"}),
        (["inspect", "--digest"], {"name", "tensors", "digest"}),
        (["diff", "@"], {"differences"}),
        (["doctor"], {"version", "findings", "lane"}),
        (["bench", "--size", "1M", "--repeats", "1"], {"version", "bytes", "limits", "lanes"}),
    ],
)
def test_json_has_a_schema_and_is_documented(arguments, keys, model):
    """`serve` and `fetch` are in test_serve.py."""
    files = [model] if arguments[0] in ("inspect", "diff") else []
    done = wherry(*[model if word == "@" else word for word in arguments], "--json", *files)
    told = json.loads(done.stdout)
    assert told["schema"] == 1 and keys <= set(told)
    document = (ROOT / "docs/command.md").read_text().split("## JSON")[1].split("\n## ")[0]
    for key in told:
        assert f"`{key}`" in document, key


def size_text(path):
    return f"{path.stat().st_size / 1024:.1f} KiB"


def test_inspect_json(model):
    told = json.loads(wherry("inspect", "--json", model).stdout)
    assert (told["format"], told["files"], told["tensors"], told["bytes"]) == (
        "safetensors",
        1,
        6,
        4 * 512 + 8 + 8,
    )
    leaves = {leaf["name"]: leaf for leaf in told["values"]}
    assert leaves["head"] == {
        "name": "head",
        "kind": "tensor",
        "dtype": "bfloat16",
        "shape": [4],
        "bytes": 8,
        "storage": 4,
    }
    assert leaves["__metadata__.by"]["value"] == '"a test"'


def test_names_with_odd_characters(tmp_path):
    names = ['quo"te', "back\\slash", "tab\there", "schön", "\u0001"]
    path = write_safetensors(
        tmp_path / "odd.safetensors", {name: ("U8", [1], b"x") for name in names}
    )
    told = json.loads(wherry("inspect", "--json", path).stdout)
    assert [leaf["name"] for leaf in told["values"]] == names


def test_text_from_files_is_escaped(tmp_path, model):
    name = "\x1b[2J\x9b\r\nü"
    path = write_safetensors(tmp_path / "evil.safetensors", {name: ("U8", [1], b"x")}, {"by": name})
    index = tmp_path / "evil.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    strange = write_safetensors(tmp_path / "strange.safetensors", {"a": (name, [1], b"x")})
    for arguments in (
        ["inspect", path],
        ["inspect", "--digest", path],
        ["diff", path, model],
        ["inspect", index],
        ["inspect", strange],
        [name],
    ):
        done = wherry(*arguments)
        told = done.stdout + done.stderr
        assert "ü" in told and not set("\x1b\x9b\r") & set(told), (arguments, told)
        assert len(done.stderr.splitlines()) <= 1


def test_json_is_utf_8(tmp_path, model):
    path = os.fsencode(tmp_path) + b"/caf\xe9.safetensors"
    os.link(model, path)
    done = subprocess.run(
        [WHERRY, "inspect", "--json", path], env=environment(), stdout=subprocess.PIPE, check=True
    )
    assert json.loads(done.stdout.decode("utf-8"))["name"] == f"{tmp_path}/caf\ufffd.safetensors"
    assert "caf\\xe9.safetensors" in subprocess.run(
        [WHERRY, "inspect", path], env=environment(), stdout=subprocess.PIPE, check=True
    ).stdout.decode("utf-8")


def measure(path):
    """Seconds of an inspection, best of three, and its peak memory when the output starts."""
    best = (1e9, 0)
    for _ in range(3):
        begin = time.monotonic()
        with start("inspect", "--json", path) as child:
            told = child.stdout.read(1)
            memory = re.search(
                r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{child.pid}/status").read_text()
            )
            told += child.stdout.read()
            assert child.wait(10) == OK and len(json.loads(told)["values"]) == 1000
        best = min(best, (time.monotonic() - begin, int(memory[1]) << 10))
    return best


def test_a_huge_file_is_inspected_as_fast_as_a_small_one(tmp_path):
    tensors = 1000
    less = measure(sparse(tmp_path / "less.safetensors", tensors, (100 << 20) // tensors))
    more = measure(sparse(tmp_path / "more.safetensors", tensors, (100 << 30) // tensors))
    # Reading 100 GiB would take far longer than a second.
    assert more[0] < 1.5 * less[0] + 1, "100 GiB take longer than 100 MiB"
    assert more[1] < 64 << 20, "memory"


def test_diff(tmp_path, model):
    same = small(tmp_path / "same.safetensors")
    done = wherry("diff", model, same)
    assert (done.returncode, done.stdout, done.stderr) == (OK, "", "")
    data = bytearray(bytes([1]) * 512)
    data[21] = 9
    other = small(
        tmp_path / "other.safetensors", layers=3, step=8, **{"layers.1.weight": bytes(data)}
    )
    done = wherry("diff", model, other)
    assert done.returncode == FAILED and done.stderr == ""
    assert done.stdout.splitlines() == [
        "! layers.1.weight: 1 of 128 elements differ, first at index 5",
        "- layers.3.weight: float32 [16, 8]",
        "! step: 1 of 1 elements differ, first at index 0",
    ]
    assert (
        wherry("diff", other, model).stdout.splitlines()[1] == "+ layers.3.weight: float32 [16, 8]"
    )
    assert wherry("diff", "-q", model, other).stdout == ""
    told = json.loads(wherry("diff", "--json", model, other).stdout)
    assert [(one["name"], one["change"]) for one in told["differences"]] == [
        ("layers.1.weight", "changed"),
        ("layers.3.weight", "removed"),
        ("step", "changed"),
    ]
    assert [
        one["name"]
        for one in json.loads(wherry("diff", "--json", "--no-content", model, other).stdout)[
            "differences"
        ]
    ] == ["layers.3.weight"]


def two_formats(folder):
    """The same tensors as .wherry, with shared and transposed views, and as safetensors."""
    words, halves = struct.pack("<16f", *range(16)), struct.pack("<8e", *range(8))
    strided = native(
        folder / "strided.wherry",
        (ROOT / "tests/golden/good/shared_storage.bin").read_bytes(),
        [words, halves],
    )
    transposed = struct.pack("<16f", *(4 * column + row for row in range(4) for column in range(4)))
    dense = write_safetensors(
        folder / "dense.safetensors",
        {
            "row": ("F32", [4], words[32:48]),
            "other": ("F16", [8], halves),
            "bits": ("I64", [8], words),
            "head": ("F32", [4, 4], transposed),
            "embed": ("F32", [4, 4], words),
        },
    )
    return strided, dense


def test_diff_of_shapes_and_formats(tmp_path):
    write_safetensors(
        tmp_path / "a.safetensors", {"x": ("F32", [2, 3], bytes(24)), "y": ("I64", [2], bytes(16))}
    )
    write_safetensors(
        tmp_path / "b.safetensors", {"y": ("I64", [2], bytes(16)), "x": ("F32", [3, 2], bytes(24))}
    )
    done = wherry("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert (done.returncode, done.stdout) == (FAILED, "! x: float32 [2, 3] -> float32 [3, 2]\n")
    strided, dense = two_formats(tmp_path)
    assert wherry("diff", strided, dense).returncode == OK


def test_digest(tmp_path, model):
    done = wherry("inspect", "--digest", model)
    assert done.returncode == OK
    lines = dict(line.split("  ")[::-1] for line in done.stdout.splitlines())
    assert set(lines) == {*(f"layers.{i}.weight" for i in range(4)), "head", "step", str(model)}
    assert (
        all(re.fullmatch("[0-9a-f]{32}", digest) for digest in lines.values())
        and len(set(lines.values())) == 7
    )
    assert wherry("inspect", "--digest", "-q", model).stdout == f"{lines[str(model)]}  {model}\n"
    other = small(tmp_path / "other.safetensors", step=8)
    one, two = (
        json.loads(wherry("inspect", "--digest", "--json", path).stdout) for path in (model, other)
    )
    assert one["name"] == str(model) and list(one["tensors"]) == sorted(one["tensors"])
    assert one["tensors"]["head"] == lines["head"] == two["tensors"]["head"]
    assert one["tensors"]["step"] != two["tensors"]["step"]
    assert one["digest"] == lines[str(model)] != two["digest"]


def test_digests_do_not_change(model):
    """Users store them, so every version must print the same."""
    lines = dict(
        line.split("  ")[::-1] for line in wherry("inspect", "--digest", model).stdout.splitlines()
    )
    assert lines["layers.1.weight"] == "c6b7d88e9d66975ee3916c6f3303cc0f"
    assert lines[str(model)] == "d46a530ac3819139421af996c22ef997"


def test_a_digest_does_not_depend_on_order_strides_or_format(tmp_path):
    digests = {
        wherry("inspect", "--digest", "-q", path).stdout.split()[0]
        for path in two_formats(tmp_path)
    }
    assert len(digests) == 1


def test_a_digest_covers_texts_to_their_end(tmp_path):
    digests = set()
    for end in "ab":
        path = write_safetensors(
            tmp_path / f"{end}.safetensors", {"x": ("U8", [1], b"x")}, {"notes": 5000 * "." + end}
        )
        digests.add(wherry("inspect", "--digest", "-q", path).stdout.split()[0])
    assert len(digests) == 2
    told = wherry("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert told.returncode == FAILED and told.stdout == "! __metadata__.notes: content differs\n"


@pytest.mark.parametrize(
    "manifest, storages, names",
    [("dtensor_2d", [16, 16, 4], ["a", "b", "c"]), ("sharded_chunk", [24], ["[0]"])],
)
def test_digests_of_sharded_tensors(manifest, storages, names, tmp_path):
    text = (ROOT / "tests/golden/good" / f"{manifest}.bin").read_bytes()
    told = []
    for fill in b"xxy":
        path = native(tmp_path / "it.wherry", text, [bytes([fill]) * size for size in storages])
        told.append(json.loads(wherry("inspect", "--digest", "--json", path).stdout))
    assert list(told[0]["tensors"]) == names
    assert told[0] == told[1]
    assert told[0]["digest"] != told[2]["digest"] and all(
        told[0]["tensors"][name] != told[2]["tensors"][name] for name in names
    )


@pytest.mark.parametrize("command", ["inspect", "inspect --digest", "diff"])
def test_bad_files(command, tmp_path, model):
    (tmp_path / "text.safetensors").write_text("this is not a checkpoint")
    (tmp_path / "nothing.safetensors").touch()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model.read_bytes()[:-1])
    for path, code, told in [
        (tmp_path / "nothing.safetensors", BYTES, "the file is empty"),
        (tmp_path / "none.safetensors", RESOURCE, "No such file"),
        (tmp_path, RESOURCE, str(tmp_path)),
        (tmp_path / "text.safetensors", BYTES, "text.safetensors"),
        (cut, BYTES, "cut.safetensors"),
    ]:
        done = wherry(*command.split(), path, *([model] if command == "diff" else []))
        assert done.returncode == code and done.stdout == "", (path, done)
        assert done.stderr.startswith(f"wherry {command.split()[0]}: ") and told in done.stderr


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["inspect"], "missing argument: FILE|ADDRESS"),
        (["inspect", "a", "b"], "unexpected argument 'b'"),
        (["diff", "a"], "missing argument: A B"),
        (["inspect", "--digest", "tcp://127.0.0.1:1"], "--digest needs a file"),
    ],
)
def test_mistakes(arguments, told):
    done = wherry(*arguments)
    assert done.returncode == USAGE and told in done.stderr
