"""Building the package. Errors name the missing parts and the command that installs them. The
source distribution is complete."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import wherry

ROOT = pathlib.Path(__file__).resolve().parents[2]
MESON = [sys.executable, "-m", "mesonbuild.mesonmain"]
OPENSSL = ("openssl", "libssl", "libcrypto")
LIBRARIES = ("libxxhash", *OPENSSL)

# Makes Python name a folder without headers as its own.
NO_HEADERS = """
import sysconfig
paths, variables = sysconfig.get_paths, sysconfig.get_config_vars
def get_paths(*arguments, **options):
    return {**paths(*arguments, **options), "include": "/nowhere", "platinclude": "/nowhere"}
def get_config_vars(*names):
    return variables(*names) if names else {**variables(), "LIBPC": "/nowhere", "INCLUDEPY": "/nowhere"}
sysconfig.get_paths, sysconfig.get_config_vars = get_paths, get_config_vars
"""


def refusal(folder, *options, **environment):
    """Meson's output when it cannot set up a build."""
    result = subprocess.run(
        [*MESON, "setup", str(folder / "build"), str(ROOT), *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode != 0, "meson set up the build although something is missing"
    (line,) = re.findall(r"ERROR: Problem encountered: (.*)", result.stdout)
    return line


def packages_found(folder, *names):
    """A folder in which pkg-config finds these libraries and no others."""
    found = folder / "pkgconfig"
    found.mkdir()
    for name in names:
        where = subprocess.run(
            ["pkg-config", "--variable=pcfiledir", name], check=True, capture_output=True, text=True
        ).stdout
        shutil.copy(pathlib.Path(where.strip()) / f"{name}.pc", found)
    return str(found)


def test_a_missing_library_is_named(tmp_path):
    said = refusal(
        tmp_path, PKG_CONFIG_LIBDIR=packages_found(tmp_path, *OPENSSL), PKG_CONFIG_PATH=""
    )
    assert said == (
        "missing: libxxhash. To install: scripts/install-deps build, or: apt install libxxhash-dev, "
        "or: dnf install xxhash-devel"
    )


def test_one_error_names_all_missing_parts(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in pathlib.Path("/usr/bin").iterdir():
        if program.name not in ("pkg-config", "pkgconf"):
            (programs / program.name).symlink_to(program)
    said = refusal(tmp_path, PATH=str(programs))
    assert "missing: libxxhash, pkg-config, by which libraries are found. " in said
    assert "apt install libxxhash-dev pkg-config" in said


def test_a_missing_compiler_is_named(tmp_path):
    said = refusal(tmp_path, CC="/nowhere/cc")
    assert (
        "no C compiler works here" in said
        and "apt install gcc" in said
        and "dnf install gcc" in said
    )


def test_missing_headers_of_python_are_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_HEADERS)
    libraries = packages_found(tmp_path, *LIBRARIES)
    said = refusal(
        tmp_path,
        "-Dpython=enabled",
        PYTHONPATH=str(tmp_path),
        PKG_CONFIG_LIBDIR=libraries,
        PKG_CONFIG_PATH="",
    )
    assert re.match(
        r"missing: Python\.h for /\S+\. To install: scripts/install-deps python, or: apt install python3-dev",
        said,
    )


def test_a_build_of_the_library_alone_needs_no_python(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_HEADERS)
    subprocess.run(
        [*MESON, "setup", str(tmp_path / "build"), str(ROOT), "-Dtests=disabled"],
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    targets = (tmp_path / "build" / "build.ninja").read_text()
    assert "libwherry.so" in targets and "_core.abi3.so" not in targets


def own_repository(folder):
    """The current files of the project, committed to their own repository, because a distribution
    has only committed files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout; a source distribution is made of what git tracks")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        [*identity, "commit", "--quiet", "--no-verify", "--message=all"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def built(folder, kind, into):
    """The file that the backend makes in a folder: a source distribution, or a wheel without
    optimization."""
    settings = {} if kind == "sdist" else {"setup-args": ["-Dbuildtype=plain", "-Db_lto=false"]}
    call = f"import sys, mesonpy; print('made', mesonpy.build_{kind}(sys.argv[1], {settings}))"
    result = subprocess.run(
        [sys.executable, "-c", call, str(into)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return into / re.findall(r"^made (.*)$", result.stdout, re.MULTILINE)[-1]


def test_the_source_distribution_is_enough(tmp_path):
    """It has everything that a wheel is built from, and the wheel has the same files as the
    installed package."""
    (tmp_path / "tree").mkdir()
    source = built(own_repository(tmp_path / "tree"), "sdist", tmp_path)
    shutil.unpack_archive(source, tmp_path)
    (unpacked,) = tmp_path.glob("wherry-*/")
    wheel = built(unpacked, "wheel", tmp_path)
    assert re.fullmatch(r"wherry-[0-9.]+-cp3\d+-abi3-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import wherry; print(wherry.__version__, wherry.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert said == [wherry.__version__, str(tmp_path / "site" / "wherry" / "__init__.py")]


def test_the_version_is_the_librarys():
    (version,) = re.findall(
        r"^  version: '([^']*)'", (ROOT / "meson.build").read_text(), re.MULTILINE
    )
    assert wherry.__version__ == version


def test_nothing_is_imported_that_need_not_be_there():
    code = "import sys, wherry; print([name for name in ('torch', 'numpy', 'tqdm', 'torchft') if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )
