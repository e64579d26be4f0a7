"""What all commands share: help, options, exit codes, manual pages, completions."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest
from checkpoints import small
from command import BUILD, ROOT, USAGE, WHERRY, on_terminal, wherry

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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *([command, "--help"] for command in COMMANDS),
        ["inspect", "absent.safetensors"],
        ["inspect", "A"],
        ["diff", "A", "B"],
        ["demo", "--ranks", "3", "--kills", "7", "--steps", "7"],
        ["fetch", "tcp://127.0.0.1:1", "-o", "got.safetensors"],
        ["doctor"],
    ],
)
def test_words_are_not_broken_on_a_narrow_terminal(arguments, tmp_path):
    small(tmp_path / "A")
    small(tmp_path / "B", step=8)
    lines = on_terminal(60, *arguments, cwd=tmp_path, WHERRY_TOKEN="x", WHERRY_UCX_LIBRARY="")[1]
    assert lines and not [line for line in lines if len(line) > 60]
    if "doctor" not in arguments or "--help" in arguments:  # Its figures are new each time.
        wide = wherry(*arguments, cwd=tmp_path, WHERRY_TOKEN="x")
        assert " ".join(lines).split() == (wide.stdout + wide.stderr).split()


def test_a_narrow_terminal_gets_escaped_text():
    code, lines = on_terminal(60, "fetch", "\x1b[31mwrong\x07" + 12 * " address")
    assert code == USAGE and all(line.isprintable() and len(line) <= 60 for line in lines)
    assert "\\x1b[31mwrong\\x07 address" in lines[0] and len(lines) > 2


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
    codes = page.split(".SH EXIT STATUS\n")[1].split("\n.SH ")[0]
    assert re.findall(r"^\.B (.+)$", codes, re.M) == [*map(str, range(10)), "128+N"]
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


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_loads_its_completion(tmp_path):
    script = f"""autoload -Uz compinit; fpath=({BUILD}/cli/completions $fpath); compinit -u -d {tmp_path}/dump
        whence -w _wherry; echo $_comps[wherry]; autoload +X _wherry && echo loaded"""
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["_wherry:", "function", "_wherry", "loaded"], done.stderr


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("wherry doc", "wherry doctor "),
        ("wherry demo --ki", "wherry demo --kills "),
        ("wherry demo --lane s", "wherry demo --lane stream "),
    ],
)
def test_zsh_completes(typed, completed, tmp_path):
    """Types into an interactive shell, as a user does."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "HOME": str(tmp_path)},
    ) as shell:
        os.close(its)
        setup = f"PS1='> '; autoload -Uz compinit; fpath=({BUILD}/cli/completions $fpath); "
        setup += f"compinit -u -d {tmp_path}/dump; echo re''ady\n"
        os.write(ours, setup.encode())
        shown = read_until(ours, "ready\r\n")
        os.write(ours, f"{typed}\t".encode())
        shown = read_until(ours, completed)
        assert completed in shown
        shell.kill()
        os.close(ours)


def read_until(terminal, text, seconds=20):
    """What a terminal shows, until it contains the text or time is up."""
    shown = ""
    end = time.monotonic() + seconds
    while text not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completion(tmp_path):
    def complete_in_fish(line):
        script = f"source {BUILD}/cli/completions/wherry.fish; complete -C {line!r}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return [found.split("\t")[0] for found in done.stdout.splitlines()]

    assert set(COMMANDS) == set(complete_in_fish("wherry "))
    assert complete_in_fish("wherry doc") == ["doctor"]
    for command in COMMANDS:
        assert set(options_of(command)) <= set(complete_in_fish(f"wherry {command} --"))
    assert complete_in_fish("wherry demo --lane s") == ["stream"]


@pytest.mark.parametrize(
    "word, meant",
    [
        ("serv", "serve"),
        ("fech", "fetch"),
        ("dcotor", "doctor"),
        ("benhc", "bench"),
        ("x", None),
        ("sail", None),
        ("--hepl", None),
        ("a" * 5000, None),
    ],
)
def test_unknown_commands(word, meant):
    done = wherry(word)
    assert done.returncode == USAGE and done.stdout == "" and "unknown " in done.stderr
    if meant:
        assert f"did you mean `wherry {meant}`?" in done.stderr
    else:
        assert "did you mean" not in done.stderr


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
