#!/usr/bin/env python3
"""Compares the speed of the working tree with that of another commit: `make bench-against REV=...`.

Builds both for release, below build-against/, and measures each case in pairs: the old and the new
revision right after each other, in alternating order. Prints the median ratio new / old of each
row and the geometric mean of these medians.

Exit status: 0 if the working tree is not slower; 1 if the mean or a row is above its limit; 2 if
something could not be built or measured.

How a case is measured:

- C: each revision runs its own programs. Their arguments and their JSON are the interface. A step
  that changes its meaning needs a new name; it then counts as a new row.
- Python: both revisions' packages run under this tree's compare_torch.py and compare_hosts.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

sys.dont_write_bytecode = True  # Keep the source tree clean.
HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent
sys.path.append(str(TOP / "tests" / "hosts"))
import hosts  # noqa: E402
import report  # noqa: E402

FOLDER = TOP / "build-against"
PAIRS = 15
MEAN_LIMIT = 1.03
ROW_LIMIT = 1.10
REPEATS = "5"  # per process; their median is one sample
TIMEOUT_S = 300  # per process

OLD, NEW = "old", "new"
Seconds = dict[str, float]  # seconds per step of a case


class NotMeasured(Exception):
    """A program failed or did not end in time."""


# ---- statistics ----


@dataclasses.dataclass
class Row:
    """One line of the table: the seconds of each pair."""

    name: str
    pairs: list[tuple[float, float]]  # seconds of the old and the new revision

    def ratios(self) -> list[float]:
        return [new / old for old, new in self.pairs]

    def median(self) -> float:
        return statistics.median(self.ratios())

    def spread(self) -> tuple[float, float]:
        """The quartiles. Half of the ratios lie between them."""
        ratios = self.ratios()
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, high

    def milliseconds(self, which: int) -> float:
        return statistics.median(pair[which] for pair in self.pairs) * 1e3


def rows_of(
    case: str, samples: list[tuple[Seconds, Seconds]]
) -> tuple[list[Row], dict[str, list[str]]]:
    """The rows of one case, and the names of the rows that only one revision has."""
    steps: dict[str, None] = {}
    for old, new in samples:
        steps |= dict.fromkeys([*old, *new])
    rows, single = [], {OLD: [], NEW: []}  # type: list[Row], dict[str, list[str]]
    for step in steps:
        name = f"{case} {step}" if step else case
        pairs = [(old[step], new[step]) for old, new in samples if step in old and step in new]
        if pairs:
            rows.append(Row(name, pairs))
        else:
            single[OLD if any(step in old for old, _ in samples) else NEW].append(name)
    return rows, single


def geometric_mean(rows: Iterable[Row]) -> float:
    return statistics.geometric_mean(row.median() for row in rows)


class Limits:
    """The highest allowed ratio per row, from "1.15 torch/*20,000*=1.20": one for all rows, and one
    for rows whose names match."""

    def __init__(self, text: str) -> None:
        words = [word.rpartition("=") for word in text.split()]
        self.special = [(pattern, float(limit)) for pattern, sign, limit in words if sign]
        general = [float(limit) for _, sign, limit in words if not sign] or [ROW_LIMIT]
        if len(general) > 1:
            raise ValueError("more than one limit without a pattern")
        self.general = general[0]

    def of(self, row: Row) -> float:
        found = (limit for pattern, limit in self.special if fnmatch.fnmatchcase(row.name, pattern))
        return next(found, self.general)

    def __str__(self) -> str:
        special = [f"{limit} for {pattern}" for pattern, limit in self.special]
        return ", ".join([str(self.general), *special])


def slow_rows(rows: Iterable[Row], limits: Limits) -> list[Row]:
    return [row for row in rows if row.median() > limits.of(row)]


# ---- revisions ----


@dataclasses.dataclass
class Revision:
    label: str
    source: pathlib.Path
    build: pathlib.Path

    def program(self, name: str) -> pathlib.Path:
        return self.build / "bench" / name

    def package(self) -> str:
        """The folder to put on PYTHONPATH."""
        return str(next((self.build / "stage").rglob("_core.abi3.so")).parent.parent)


def run_logged(log: pathlib.Path, *command: str | pathlib.Path) -> None:
    with open(log, "a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(map(str, command))}\n")
        output.flush()
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=TOP)
    if done.returncode:
        sys.stderr.write("".join(log.read_text().splitlines(keepends=True)[-30:]))
        raise SystemExit(fail(f"{command[0]} failed; all of its output is in {log}"))


def fail(message: str) -> int:
    print(f"bench-against: {message}", file=sys.stderr)
    return 2


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=TOP, check=True, capture_output=True, text=True
    ).stdout.strip()


def check_out(revision: str) -> Revision:
    """Puts the files of a commit into a folder of their own. It is not a git worktree, so removing
    the folder removes everything."""
    try:
        commit = git("rev-parse", "--verify", "--quiet", revision + "^{commit}")
    except subprocess.CalledProcessError:
        raise SystemExit(fail(f"git does not know a commit '{revision}'")) from None
    folder = FOLDER / commit[:12]
    source = folder / "source"
    if not source.exists():
        unpacked = folder / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", commit], cwd=TOP, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", unpacked], input=archive.stdout, check=True)
        unpacked.rename(source)
    return Revision(commit[:12], source, folder / "build")


def build(revision: Revision) -> None:
    """Builds for release as the wheel is built: with asserts and whole-program optimization."""
    print(f"building {revision.label} in {revision.build.relative_to(TOP)}", flush=True)
    revision.build.parent.mkdir(parents=True, exist_ok=True)
    log = revision.build.with_suffix(".log")
    log.write_text("")
    if not (revision.build / "build.ninja").exists():
        # An older revision may need what this one no longer needs.
        run_logged(log, revision.source / "scripts" / "install-deps", "build", "files", "mpi")
        options = [
            "-Dbuildtype=release",
            "-Dtests=disabled",
            "-Dpython=enabled",
            "-Db_ndebug=false",
        ]
        if "clang" not in os.environ.get("CC", "cc"):
            options.append("-Db_lto=true")
        run_logged(log, "meson", "setup", *options, revision.build, revision.source)
    run_logged(log, "ninja", "-C", revision.build)
    shutil.rmtree(revision.build / "stage", ignore_errors=True)
    install = [
        "meson",
        "install",
        "-C",
        revision.build,
        "--no-rebuild",
        "--quiet",
        "--tags",
        "python-runtime",
    ]
    run_logged(log, *install, "--destdir", revision.build / "stage")


# ---- running a program ----


def run_program(command: list[str], environment: dict[str, str]) -> str:
    """Returns the output of a program. If it hangs, it is killed with all processes that it
    started."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NotMeasured(f"{command[0]} did not end within {TIMEOUT_S} s") from None
        raise
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or ["no message"]
        raise NotMeasured(f"{' '.join(command)} ended with {process.returncode}: {last[0]}")
    return output


def last_json(output: str) -> dict:
    """Returns the last line that is a JSON object. Launchers may print other lines."""
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def ucx_environment() -> dict[str, str]:
    """Selects the libucp that pip has installed, if any, instead of the system's older one."""
    for folder in sys.path:
        libraries = pathlib.Path(folder, "libucx", "lib")
        if (libraries / "libucp.so.0").exists():
            return {"LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    return {}


# ---- cases ----


@dataclasses.dataclass
class Case:
    """A set of steps that one run of a program measures."""

    name: str  # SUITE/CASE
    estimate_s: float  # estimated duration of one run
    has: Callable[[Revision], bool]
    measure: Callable[[Revision], Seconds]


def medians(steps: dict[str, list[float]]) -> Seconds:
    return {name: statistics.median(values) for name, values in steps.items()}


def ferry_names(revision: Revision) -> list[str]:
    """The cases that a revision's bench_ferry lists in its usage text."""
    program = revision.program("bench_ferry")
    if not program.exists():
        return []
    usage = subprocess.run([program], capture_output=True, text=True).stderr
    return usage.partition("cases:")[2].split()


def ferry_cases(revisions: list[Revision]) -> list[Case]:
    names = {revision.label: ferry_names(revision) for revision in revisions}
    slow = {"layers": 12.0, "three": 8.0, "empty": 1.0, "pages": 1.5}

    def case(name: str) -> Case:
        def measure(revision: Revision) -> Seconds:
            output = run_program([str(revision.program("bench_ferry")), name, REPEATS], {})
            steps = last_json(output)["steps"]
            return medians({step: one["seconds"] for step, one in steps.items() if "lane" in one})

        return Case(
            f"bench/{name}",
            slow.get(name, 4.0),
            lambda revision: name in names[revision.label],
            measure,
        )

    return [
        case(name) for name in dict.fromkeys(name for known in names.values() for name in known)
    ]


def manifest_cases(_: list[Revision]) -> list[Case]:
    def case(tensors: int) -> Case:
        def measure(revision: Revision) -> Seconds:
            result = last_json(
                run_program([str(revision.program("bench_manifest")), str(tensors), REPEATS], {})
            )
            return medians({step: result[step] for step in ("encode", "decode")})

        has = lambda revision: revision.program("bench_manifest").exists()  # noqa: E731
        return Case(f"bench/manifest-{tensors}", 0.2 + tensors / 200_000, has, measure)

    return [case(20_000), case(200_000)]


def mpi_cases(_: list[Revision]) -> list[Case]:
    def case(flavour: str, pages: str) -> Case:
        program = f"bench_mpi_{flavour}"

        def measure(revision: Revision) -> Seconds:
            launcher = shutil.which(f"mpirun.{flavour}") or "mpirun"
            command = [
                TOP / "scripts/run-mpi",
                flavour,
                launcher,
                "2",
                revision.program(program),
                pages,
                REPEATS,
            ]
            steps = last_json(run_program([str(one) for one in command], {}))["steps"]
            return medians(
                {step["name"]: step["seconds"] for step in steps if step["name"] != "plain"}
            )

        return Case(
            f"mpi/{flavour}-{pages}",
            15,
            lambda revision: revision.program(program).exists(),
            measure,
        )

    return [case(flavour, pages) for flavour in ("openmpi", "mpich") for pages in report.PAGES]


def ucx_cases(_: list[Revision]) -> list[Case]:
    def case(name: str, pages: str, tensors: int, size: int) -> Case:
        def measure(revision: Revision) -> Seconds:
            command = [str(revision.program("bench_ucx")), pages, str(tensors), str(size), REPEATS]
            steps = last_json(run_program(command, {"UCX_TLS": "tcp", **ucx_environment()}))[
                "steps"
            ]
            plain = ("tag", "am")
            return medians(
                {step: seconds for step, seconds in steps.items() if step.split()[0] not in plain}
            )

        return Case(
            f"ucx/{name}", 8, lambda revision: revision.program("bench_ucx").exists(), measure
        )

    large = [case(f"gib-{pages}", pages, 16, 64 << 20) for pages in report.PAGES]
    return [*large, case("pages", "small", 20_000, 4096)]


def python_run(revision: Revision, script: str, *arguments: str) -> dict:
    command = [sys.executable, str(HERE / script), *arguments]
    environment = {
        "PYTHONPATH": revision.package(),
        "PYTHONDONTWRITEBYTECODE": "1",
        **ucx_environment(),
    }
    return last_json(run_program(command, environment))


def torch_cases(_: list[Revision]) -> list[Case]:
    names = ("gib", "layers", "new", "pages", "views", "three", "group-pages", "group-gib")

    def case(name: str) -> Case:
        def measure(revision: Revision) -> Seconds:
            arguments = ["--ours", "--only", name, "--repeats", REPEATS]
            return {
                "": statistics.median(
                    python_run(revision, "compare_torch.py", *arguments)["seconds"]
                )
            }

        return Case(f"torch/{name}", 15, lambda _: True, measure)

    return [case(name) for name in names]


def hosts_cases(_: list[Revision]) -> list[Case]:
    lacking = hosts.lacking(wire=True)

    def case(link: str, size: str, estimate_s: float) -> Case:
        def measure(revision: Revision) -> Seconds:
            return medians(
                python_run(revision, "compare_hosts.py", "--ours", "--only", link, "--size", size)
            )

        return Case(
            f"hosts/{link}-{size.replace(' ', '')}", estimate_s, lambda _: not lacking, measure
        )

    links = ("near", "far", "farther")
    return [case(link, size, s) for size, s in (("256 MiB", 12), ("1 GiB", 28)) for link in links]


SUITES = {
    "bench": [ferry_cases, manifest_cases],
    "torch": [torch_cases],
    "mpi": [mpi_cases],
    "ucx": [ucx_cases],
    "hosts": [hosts_cases],
}


def is_selected(name: str, patterns: list[str]) -> bool:
    """True if a pattern is the suite or the name of a case. A name may have wildcards."""
    return not patterns or any(
        name.startswith(one + "/") or fnmatch.fnmatchcase(name, one) for one in patterns
    )


# ---- the comparison ----


def measure_pair(case: Case, revisions: list[Revision], number: int) -> tuple[Seconds, Seconds]:
    """One run of each revision, the old one first in every other pair."""
    order = revisions if number % 2 == 0 else revisions[::-1]
    found = {}
    for revision in order:
        try:
            found[revision.label] = case.measure(revision)
        except NotMeasured as error:  # A launcher may fail now and then.
            print(f"{case.name}: {revision.label} runs again, since it failed: {error}")
            found[revision.label] = case.measure(revision)
    return found[revisions[0].label], found[revisions[1].label]


class Progress:
    """Prints which pair is running and about how long the rest will take."""

    def __init__(self, cases: list[Case], pairs: int) -> None:
        self.left = {case.name: 2 * pairs * case.estimate_s for case in cases}

    def total(self) -> str:
        seconds = sum(self.left.values())
        return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"

    def pair_done(self, case: Case, seconds: float, pairs_left: int) -> None:
        self.left[case.name] = seconds * pairs_left
        if sys.stderr.isatty():
            text = f"{case.name}: {pairs_left} pairs left; about {self.total()} for everything"
            print(
                f"\r\033[K{text}", end="" if pairs_left else "\r\033[K", file=sys.stderr, flush=True
            )


def line(row: Row, limits: Limits) -> str:
    low, high = row.spread()
    mark = "  slower" if row.median() > limits.of(row) else ""
    return (
        f"{row.name:44} {row.median():7.3f}  ({low:.3f}-{high:.3f})"
        f"  {row.milliseconds(0):10.2f} {row.milliseconds(1):10.2f}{mark}"
    )


def compare(
    cases: list[Case], revisions: list[Revision], pairs: int, limits: Limits
) -> tuple[list[Row], dict[str, list[str]], list[str]]:
    """Returns all rows, the names of the rows that only one revision has, and the failures."""
    rows: list[Row] = []
    single: dict[str, list[str]] = {OLD: [], NEW: []}
    failures: list[str] = []
    both = [case for case in cases if all(case.has(revision) for revision in revisions)]
    for case in cases:
        for which, other in ((OLD, 1), (NEW, 0)):
            if case.has(revisions[1 - other]) and not case.has(revisions[other]):
                single[which].append(case.name)
    neither = [case.name for case in cases if not any(case.has(revision) for revision in revisions)]
    if neither:
        print(
            f"Not measured, because neither build has it, or this machine cannot run it: {', '.join(neither)}"
        )
    progress = Progress(both, pairs)
    print(f"{len(both)} cases, {pairs} pairs each: about {progress.total()}\n")
    print(
        f"{'row':44} {'new/old':>7}  {'(quartiles)':13}  {'old, ms':>10} {'new, ms':>10}",
        flush=True,
    )
    for case in both:
        samples = []
        try:
            for number in range(pairs):
                begin = time.monotonic()
                samples.append(measure_pair(case, revisions, number))
                progress.pair_done(case, time.monotonic() - begin, pairs - number - 1)
        except NotMeasured as error:
            progress.left[case.name] = 0
            failures.append(f"{case.name}: {error}")
            print(f"{case.name:44}  failed: {error}", flush=True)
            continue
        found, alone = rows_of(case.name, samples)
        rows += found
        for which, names in alone.items():
            single[which] += names
        for row in found:
            print(line(row, limits), flush=True)
    return rows, single, failures


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"measurements per row ({PAIRS})")
    parser.add_argument(
        "--only", default="", help="suites or cases, with wildcards, separated by spaces"
    )
    parser.add_argument(
        "--mean", type=float, default=MEAN_LIMIT, help=f"highest mean ratio ({MEAN_LIMIT})"
    )
    parser.add_argument(
        "--row",
        type=Limits,
        default=Limits(""),
        help=f'highest ratio of a row ({ROW_LIMIT}); "1.15 *20,000*=1.2": 1.2 for some rows',
    )
    found = parser.parse_args(arguments)
    if found.pairs < 1:
        parser.error("at least one pair is needed")
    return found


def main() -> int:
    arguments = parse()
    patterns = arguments.only.replace(",", " ").split()
    revisions = [
        check_out(arguments.revision),
        Revision("the working tree", TOP, FOLDER / "new" / "build"),
    ]
    for revision in revisions:
        build(revision)
    known = [case for makers in SUITES.values() for make in makers for case in make(revisions)]
    cases = [case for case in known if is_selected(case.name, patterns)]
    if not cases:
        return fail(
            f"no case is called '{arguments.only}'; there are: {' '.join(case.name for case in known)}"
        )
    others = report.Others()
    rows, single, failures = compare(cases, revisions, arguments.pairs, arguments.row)
    print(f"\nOther work took {others.share():.0%} of the machine.")
    for revision, names in zip(revisions, single.values()):
        if names:
            print(f"Only in {revision.label}, not counted: {', '.join(names)}")
    for failure in failures:
        print(f"Not measured: {failure}")
    if not rows:
        return fail("nothing was measured in both revisions")
    mean = geometric_mean(rows)
    slow = slow_rows(rows, arguments.row)
    if arguments.pairs < PAIRS:
        print(f"Only {arguments.pairs} pairs per row: fewer than {PAIRS} can mislead.")
    print(f"Geometric mean of {len(rows)} rows: {mean:.3f} (limit {arguments.mean})")
    print(f"Rows above {arguments.row}: {', '.join(row.name for row in slow) or 'none'}")
    if failures:
        return 2
    return 1 if slow or mean > arguments.mean else 0


if __name__ == "__main__":
    sys.exit(main())
