"""What all commands share: help, options, exit codes, manual pages, completions."""

import os
import re
import shutil
import signal
import subprocess

import pytest
from checkpoints import small
from command import BUILD, ROOT, USAGE, WHERRY, wherry

HELP = wherry("--help").stdout
COMMANDS = re.findall(r"^  ([a-z]+) +\S", HELP.split("Commands:")[1].split("Options:")[0], re.M)


def options_of(command):
    return re.findall(
        r"^  (?:-\w, )?(--[a-z-]+)", wherry(command, "--help").stdout.split("Options:")[1], re.M
    )


def test_commands():
    assert {"demo", "doctor", "bench"} <= set(COMMANDS)
    assert "manual" not in HELP


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command):
    done = wherry(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(f"Usage: wherry {command} [OPTION...]")
    assert f"\n  wherry {command}" in done.stdout.split("Examples:")[1], "no example"
    for code in range(10):
        assert re.search(rf"^ +{code}  \S", done.stdout.split("Exit codes:")[1], re.M)
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert {"--help", "--quiet", "--verbose"} <= set(options_of(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_mistakes(command):
    for arguments, told in [
        (["--bow"], "unrecognized option"),
        (["-Z"], "invalid option"),
        (["-q", "-v"], "cannot be combined"),
    ]:
        done = wherry(command, *arguments)
        assert done.returncode == USAGE and done.stdout == "", arguments
        assert done.stderr.startswith(f"wherry {command}: ") and told in done.stderr


def test_exit_codes_are_in_the_documents():
    document = (ROOT / "docs/command.md").read_text()
    for code, text in re.findall(
        r"^ +(\d)  (.+)", wherry("doctor", "--help").stdout.split("Exit codes:")[1], re.M
    ):
        assert f"| {code} | {text} |" in document


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_manual_page(command, tmp_path):
    name = f"wherry-{command}.1" if command else "wherry.1"
    page = (BUILD / "cli" / name).read_text()
    assert page.startswith('.TH "WHERRY')
    for option in options_of(command) if command else []:
        assert option.replace("-", r"\-") in page
    if shutil.which("man"):
        checked = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", BUILD / "cli" / name],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
        )
        assert checked.returncode == 0 and checked.stderr == ""


def complete(*words):
    """What bash completes the last word to."""
    script = f"""source {BUILD}/cli/completions/wherry
        COMP_WORDS=(wherry {" ".join(repr(word) for word in words)}) COMP_CWORD={len(words)}
        _wherry; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()


def test_bash_completion():
    assert set(COMMANDS) <= set(complete(""))
    assert complete("doc") == ["doctor"]
    for command in COMMANDS:
        assert set(complete(command, "--")) == set(options_of(command))
    assert complete("demo", "--lane", "s") == ["stream"]
    assert complete("serve", "--port", "") == complete("serve", "-p", "") == []


def test_zsh_completion():
    text = (BUILD / "cli/completions/_wherry").read_text()
    assert text.startswith("#compdef wherry\n")
    for command in COMMANDS:
        part = text.split(f"        {command})\n")[1].split(";;")[0]
        assert all(f"'{option}[" in part for option in options_of(command))
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n", BUILD / "cli/completions/_wherry"], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["doctor", "--help"],
        ["diff", "A", "B"],
        ["inspect", "--digest", "A"],
        ["inspect", "A"],
    ],
)
def test_unwritable_output(arguments, tmp_path):
    small(tmp_path / "A")
    small(tmp_path / "B", step=8)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [WHERRY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    assert done.returncode == 4 and re.search("cannot (be )?writ", done.stderr)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["inspect", "A"], ["inspect", "--digest", "A"], ["doctor"]]
)
def test_closed_output(arguments, tmp_path):
    """As with `| head`: it exits without an error message."""
    small(tmp_path / "A", layers=200)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = subprocess.run(
            [WHERRY, *arguments], stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
