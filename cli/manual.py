#!/usr/bin/env python3
"""manual.py WHERRY man [COMMAND] | bash | zsh | fish: prints a manual page or a shell completion,
made from the output of --help."""

import re
import subprocess
import sys

OPTION = re.compile(r"  (?:-(\w), )?--([a-z-]+)(?: (\S+))?(?: {2,}(.*))?$")


def run(*command):
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


class Command:
    """The output of `wherry NAME --help`, or of `wherry --help` if the name is empty."""

    def __init__(self, wherry, name=""):
        self.name = name
        text = run(wherry, *filter(None, [name]), "--help")
        self.head, *sections = re.split(r"^([A-Z][a-z ]+):\n", text, flags=re.M)
        self.sections = dict(zip(sections[::2], sections[1::2], strict=True))
        self.usage, *self.paragraphs = [
            part.replace("\n", " ").strip() for part in self.head.split("\n\n") if part
        ]
        self.options = []  # (letter, name, value, help)
        for line in self.sections["Options"].split("\n\n")[0].splitlines():
            if match := OPTION.match(line):
                self.options.append([part or "" for part in match.groups()])
            elif self.options:
                self.options[-1][3] = f"{self.options[-1][3]} {line.strip()}".strip()

    def commands(self):
        """Returns (name, summary) for each command."""
        return re.findall(r"^  (\w+) +(.+)", self.sections["Commands"], re.M)


def choices(value):
    """The words of a value such as auto|cma|ring."""
    return value.split("|") if "|" in value else []


def takes_file(value):
    return value in ("FILE", "PATH")


# ---- manual pages ----


def roff(text):
    """Escapes a line: a leading dot or quote, hyphens and backslashes."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def term(name, text):
    return f".TP\n.B {roff(name)}\n{roff(text)}"


def exit_codes(command):
    lines = command.sections["Exit codes"].splitlines()
    codes = [match.groups() for line in lines if (match := re.match(r" +(\d+)  (.+)", line))]
    return [".SH EXIT STATUS", *(term(*code) for code in codes), term("128+N", "ended by signal N")]


def manual_page(wherry, name):
    main = Command(wherry)
    version = run(wherry, "--version").split()[1]
    commands = dict(main.commands())
    page = f"wherry-{name}" if name else "wherry"
    command = Command(wherry, name)
    summary = commands[name] if name else "move training checkpoints between processes and machines"
    lines = [
        f'.TH "{page.upper()}" 1 "" "Wherry {version}" "Wherry"',
        ".SH NAME",
        f"{roff(page)} \\- {roff(summary)}",
    ]
    lines += [".SH SYNOPSIS", roff(command.usage.removeprefix("Usage: ")), ".SH DESCRIPTION"]
    lines.append("\n.PP\n".join(map(roff, command.paragraphs)))
    if not name:
        lines.append(".SH COMMANDS")
        lines += [f".TP\n.BR wherry\\-{one} (1)\n{roff(text)}" for one, text in commands.items()]
    lines.append(".SH OPTIONS")
    for letter, option, value, text in command.options:
        lines.append(
            term(
                f"{f'-{letter}, ' if letter else ''}--{option}{f' {value}' if value else ''}", text
            )
        )
    if name:
        lines += [
            ".SH EXAMPLES",
            ".nf",
            *(roff(line[2:]) for line in command.sections["Examples"].strip("\n").splitlines()),
            ".fi",
        ]
        lines += [*exit_codes(command), ".SH SEE ALSO", ".BR wherry (1)"]
    else:
        lines += [
            ".SH ENVIRONMENT",
            term("WHERRY_LOG", "how much the library logs: off, error, warn, info or debug"),
            term("WHERRY_TOKEN", "the token of wherry serve, also for wherry fetch and inspect"),
            term("WHERRY_LANES", "the lanes that may be used, such as cma,ring or ^cma"),
            term("WHERRY_INTERFACE", "the network interface that ranks use"),
            *exit_codes(main),
        ]
    print("\n".join(lines))


# ---- completions ----

BASH = r"""# bash completion for wherry
_wherry() {
    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
    local choices='' files=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W '--help --version @NAMES@' -- "$word")
        return
    fi
    case $command:$last in
@VALUES@
    esac
    if [[ -z $choices$files && $word == -* ]]; then
        case $command in
@OPTIONS@
        esac
    fi
    if [[ -n $choices ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _wherry wherry"""


def bash(commands):
    values, options = [], []
    for command in commands:
        options.append(
            f"        {command.name}) choices='{' '.join('--' + option[1] for option in command.options)}' ;;"
        )
        for letter, name, value, _ in command.options:
            if value:
                spellings = f"{command.name}:--{name}" + (
                    f" | {command.name}:-{letter}" if letter else ""
                )
                words = " ".join(choices(value))
                action = (
                    f'choices="{words}"'
                    if words
                    else "files=yes"
                    if takes_file(value)
                    else "return"
                )
                values.append(f"    {spellings}) {action} ;;")
    print(
        BASH.replace("@NAMES@", " ".join(command.name for command in commands))
        .replace("@VALUES@", "\n".join(values))
        .replace("@OPTIONS@", "\n".join(options))
    )


ZSH = r"""#compdef wherry
_wherry() {
    local -a commands
    commands=(
@SUMMARIES@
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local name=$words[2]
    shift words
    ((CURRENT--))
    case $name in
@COMMANDS@
    esac
}
_wherry "$@" """.rstrip()


def zsh_text(text):
    """Escapes text inside '...[...]'."""
    return re.sub(r"([\[\]:])", r"\\\1", text).replace("'", "'\\''")


def zsh(commands, summaries):
    cases = []
    for command in commands:
        lines = []
        for letter, name, value, text in command.options:
            words = " ".join(choices(value))
            action = (
                f":value:({words})"
                if words
                else f":{value}:{'_files' if takes_file(value) else ''}"
                if value
                else ""
            )
            for spelling in [f"--{name}", *([f"-{letter}"] if letter else [])]:
                lines.append(f"                '{spelling}[{zsh_text(text)}]{action}' \\")
        cases += [
            f"        {command.name})",
            "            _arguments \\",
            *lines,
            "                '*:file:_files'",
            "            ;;",
        ]
    names = [f"        '{name}:{zsh_text(summary)}'" for name, summary in summaries]
    print(ZSH.replace("@SUMMARIES@", "\n".join(names)).replace("@COMMANDS@", "\n".join(cases)))


def fish_text(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(commands, summaries):
    """Each line completes one word: a command, or an option of a command."""
    print("# fish completion for wherry\ncomplete -c wherry -n __fish_use_subcommand -f")
    for name, summary in summaries:
        print(f"complete -c wherry -n __fish_use_subcommand -a {name} -d {fish_text(summary)}")
    for command in commands:
        for letter, name, value, text in command.options:
            words = " ".join(choices(value))
            takes = "" if not value else " -r -F" if takes_file(value) else f" -x -a '{words}'"
            short = f" -s {letter}" if letter else ""
            print(
                f"complete -c wherry -n '__fish_seen_subcommand_from {command.name}'"
                f"{short} -l {name}{takes} -d {fish_text(text)}"
            )


def main(wherry, what, name=""):
    if what == "man":
        manual_page(wherry, name)
        return
    summaries = Command(wherry).commands()
    commands = [Command(wherry, one) for one, _ in summaries]
    if what == "bash":
        bash(commands)
    else:
        {"zsh": zsh, "fish": fish}[what](commands, summaries)


if __name__ == "__main__":
    main(*sys.argv[1:])
