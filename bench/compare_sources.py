#!/usr/bin/env python3
"""Measures receives from several sources, and sends to several receivers of which one is stuck.

compare_sources.py BUILD [--only CASE] [--repeats N] [--wait SECONDS] [--realtime] prints tables and
writes bench/results/sources.md. It exits with 1 if a result is worse than its bound. Needs root,
for hosts made of network namespaces.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True  # keep the source tree clean
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "hosts")]
import hosts  # noqa: E402
import report  # noqa: E402

GIB = 1 << 30
MBIT = 400
SLOW_MBIT = MBIT // 10
GOODPUT = 1448 / 1514  # the share of the line that is left after the headers
LINE = MBIT * 1e6 / 8 * GOODPUT
PORT = 29800
SECONDS_MAX = 280
WIDE = (16, GIB // 16)
MANY = (20000, 4096)
LANES = ("cma", "ring", "stream", "ucx")
MPIS = ("openmpi",)
DELAY_MS = 100
LOCAL_REPEATS, STUCK_REPEATS = 10, 4  # times --repeats

#: With --realtime, other work takes no CPU from the ranks on this host. Those of MPI poll, so they
#: would take it from each other.
REALTIME = ["chrt", "--rr", "1"]
before_each: list[str] = []

Events = list[dict]
# the lines of the tables, and the rows that have bounds
Result = tuple[list[str], list[report.Row]]


# ---- processes ----


class Rank:
    """One process of bench_sources. `events` has the lines that it has printed."""

    def __init__(self, command: list[str], host: hosts.Host | None, environment: dict[str, str]):
        kinds = ("net", "mnt", "uts", "ipc")
        self.enters = host is not None
        enter = []
        if host:
            enter = [
                "nsenter",
                *(f"--{kind.replace('mnt', 'mount')}=/proc/{host.pid}/ns/{kind}" for kind in kinds),
            ]
            enter += [f"--pid={host.namespace('pid')}"]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*enter, *command],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **environment},
        )
        self.events: Events = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                if line.startswith("{"):  # MPI may print other lines.
                    self.events.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, event: str) -> dict:
        end = time.monotonic() + SECONDS_MAX
        with self.changed:
            while True:
                found = [one for one in self.events if one["event"] == event]
                if found:
                    return found[0]
                if not self.changed.wait(end - time.monotonic()):
                    raise SystemExit(f"nobody reported '{event}' in {SECONDS_MAX} s")

    def pid(self) -> int:
        """The process itself. nsenter has forked it."""
        if not self.enters:
            return self.process.pid
        own = self.process.pid
        return int(pathlib.Path(f"/proc/{own}/task/{own}/children").read_text().split()[0])

    def finish(self, may_die: bool) -> Events:
        code = self.process.wait(SECONDS_MAX)
        self.reader.join()
        self.log.seek(0)
        text = self.log.read()
        if text and (os.environ.get("WHERRY_LOG") or (code and not may_die)):
            print(text, file=sys.stderr)
        if code and not may_die:
            raise SystemExit(f"a rank failed with {code}")
        return self.events

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                os.kill(self.pid(), signal.SIGKILL)
            except (ProcessLookupError, IndexError):
                pass
            self.process.kill()
        self.process.wait()
        self.log.close()


class Job:
    """The ranks of a benchmark, on one host or one per host of a world."""

    def __init__(
        self,
        build: pathlib.Path,
        size: int,
        state: tuple[int, int],
        rounds: list[str],
        *,
        lanes: str = "",
        delay_ms: int = 0,
        world: hosts.World | None = None,
        environment: dict[str, str] | None = None,
        mpi: str = "",
    ):
        self.ranks: list[Rank] = []
        self.folder = tempfile.TemporaryDirectory()
        address = (
            f"tcp://{world.hosts[-1].address()}:{PORT}"
            if world
            else f"unix://{self.folder.name}/meet"
        )
        environment = {
            **(environment or {}),
            **({"WHERRY_SECRET": "a secret of the hosts"} if world else {}),
        }
        arguments = [*map(str, state), lanes, str(delay_ms), *rounds]
        self.size = size
        if mpi:
            start = [
                str(HERE.parent / "scripts" / "run-mpi"),
                mpi,
                shutil.which(f"mpirun.{mpi}") or "mpirun",
            ]
            program = str(build / "bench" / f"bench_sources_{mpi}")
            command = [*start, str(size), program, "-", "-", "-", *arguments]
            self.ranks.append(Rank(command, None, environment))
            return
        for rank in range(size):
            command = [
                *([] if world else before_each),
                str(build / "bench" / "bench_sources"),
                address,
                str(rank),
                str(size),
                *arguments,
            ]
            self.ranks.append(Rank(command, world.hosts[rank] if world else None, environment))

    def finish(self, victims: tuple[int, ...] = ()) -> list[Events]:
        """Returns the events of each rank. With MPI, one process has printed those of all ranks."""
        found = [
            event
            for number, one in enumerate(self.ranks)
            for event in one.finish(number in victims)
        ]
        return [[event for event in found if event["rank"] == rank] for rank in range(self.size)]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.ranks:
            one.close()
        self.folder.cleanup()


def received(events: Events) -> list[dict]:
    return [one for one in events if one["event"] == "received"]


def seconds(one: dict) -> float:
    return one["end"] - one["begin"]


def ms(values: list[float]) -> str:
    return report.times(values, "ms", 1e3)


def spread(values: list[float]) -> str:
    return report.times(values, "s", 1)


# ---- sources on several hosts ----


def limit(host: hosts.Host, mbit: int) -> None:
    rule = f"rate {mbit}mbit burst {hosts.BURST_BYTES} limit {hosts.QUEUE_BYTES}"
    host.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rule.split())


def sent(world: hosts.World) -> int:
    return sum(host.sent() for host in world.hosts[:3])


def scaling(build: pathlib.Path, repeats: int) -> Result:
    """1 GiB from one host, and from three."""
    with hosts.World(4, rate_mbit=MBIT) as world:
        with Job(build, 4, WIDE, ["0>3", "0,1,2>3"] * repeats, lanes="stream", world=world) as job:
            results = received(job.finish()[3])
    one, three = ([seconds(result) for result in results[i::2]] for i in range(2))
    ratio = statistics.median(one) / statistics.median(three)
    row = report.Row("1 GiB from 3 hosts", spread(three), spread(one), ratio, 2.8)
    lines = report.table(["case", "time", "from 1 host", "times faster"], [row.cells()])
    return lines, [row]


def arrived_by(events: Events, moment: float) -> float:
    """The number of bytes that had arrived at a moment between two reports of progress."""
    points = [(one["time"], one["bytes"]) for one in events if one["event"] == "progress"]
    before = max((point for point in points if point[0] <= moment), default=points[0])
    after = min((point for point in points if point[0] > moment), default=points[-1])
    if after[0] <= before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (moment - before[0]) / (after[0] - before[0])


def killed(build: pathlib.Path, repeats: int) -> Result:
    """1 GiB from three hosts, one of which is killed at half time."""
    half = GIB / (3 * LINE) / 2
    lines, rows = [], []
    for number in range(repeats):
        with hosts.World(4, rate_mbit=MBIT) as world:
            with Job(build, 4, WIDE, ["0,1,2>3!watch"], lanes="stream", world=world) as job:
                begin = job.ranks[3].wait_for("begin")["time"]
                before = sent(world)
                time.sleep(max(0.0, begin + half - time.monotonic()))
                moment = time.monotonic()
                os.kill(job.ranks[1].pid(), signal.SIGKILL)
                events = job.finish(victims=(1,))[3]
                total = sent(world) - before
        result = received(events)[0]
        remaining = GIB - arrived_by(events, moment)
        took = result["end"] - moment
        best = remaining / (2 * LINE)
        case = f"run {number + 1}"
        rows.append(
            report.Row(
                f"killed, {case}, seconds beyond 1.1 times the two links",
                "",
                "",
                took - 1.1 * best,
                1.0,
                True,
            )
        )
        rows.append(report.Row(f"killed, {case}, bytes", "", "", total / GIB, 1.2, True))
        lines.append(
            [
                case,
                f"{seconds(result):.2f} s",
                f"{moment - begin:.2f} s",
                f"{remaining / 2**20:.0f} MiB",
            ]
            + [f"{took:.2f} s", f"{best:.2f} s", f"{total / GIB:.2f}"]
        )
    head = ["case", "whole call", "killed after", "bytes missing then", "time from then on"]
    return report.table(
        [*head, "those bytes over two links", "bytes on the lines / 1 GiB"], lines
    ), rows


def slow(build: pathlib.Path, repeats: int) -> Result:
    """1 GiB from three hosts, one of which has a tenth of the rate."""
    with hosts.World(4, rate_mbit=MBIT) as world:
        limit(world.hosts[1], SLOW_MBIT)
        with Job(build, 4, WIDE, ["0,1,2>3"] * repeats, lanes="stream", world=world) as job:
            results = received(job.finish()[3])
    best = GIB / (2.1 * LINE)
    times = [seconds(one) for one in results]
    row = report.Row(
        "1 GiB, one host ten times slower",
        spread(times),
        f"{best:.2f} s",
        statistics.median(times) / best,
        1.15,
        True,
    )
    return report.table(["case", "time", "best possible split", "ratio"], [row.cells()]), [row]


# ---- sources on one host ----


@dataclasses.dataclass
class Comparison:
    """Times of a case, and of its reference before and after each of them."""

    before: list[float]
    case: list[float]
    after: list[float]

    def row(self, label: str, bound: float | None) -> report.Row:
        reference = self.before + self.after
        ratio = statistics.median(self.case) / statistics.median(reference)
        return report.Row(label, ms(self.case), ms(reference), ratio, bound, at_most=True)

    def cells(self, row: report.Row) -> list[str]:
        """Adds the noise, which is the ratio of the reference after the case to the reference
        before it."""
        noise = statistics.median(self.after) / statistics.median(self.before)
        return [*row.cells(), f"{noise:.2f}"]


def compare(results: list[dict]) -> Comparison:
    """The results come in turn: before, case, after, and again. The first three are a warm-up."""
    return Comparison(*([seconds(one) for one in results[3 + i :: 3]] for i in range(3)))


def local(build: pathlib.Path, repeats: int) -> Result:
    """Three sources on this host are compared with one, in alternation. In another round the source
    in use is killed."""
    rows, lines, deaths = [], [], []
    for label, state in (("1 GiB in 16 tensors", WIDE), ("20,000 tensors of 4 KiB", MANY)):
        for kind, delay in (("the sends wait", 100), ("all begin together", 0)):
            rounds = ["0>3", "0,1,2>3", "0>3"] * (LOCAL_REPEATS * repeats + 1)
            with Job(build, 4, state, rounds, delay_ms=delay) as job:
                results = received(job.finish()[3])
            both = compare(results)
            rows.append(both.row(f"{label}, `{results[0]['lane']}`, {kind}", 1.10))
            lines.append(both.cells(rows[-1]))
        times, moved = [], []
        for _ in range(repeats):
            with Job(build, 4, state, ["0,1,2>3!kill"], delay_ms=100) as job:
                events = job.finish(victims=(0, 1, 2))[3]
            if not any(one["event"] == "killed" for one in events):
                raise SystemExit("no source was killed")
            result = received(events)[0]
            times.append(seconds(result))
            moved.append(result["moved"] / result["wanted"])
        deaths.append(
            [label, ms(times), f"{statistics.median(moved):.2f}", f"{len(times)} of {repeats}"]
        )
    head = ["case", "3 sources", "1 source", "ratio", "1 source, after / before"]
    tables = [*report.table(head, lines), "", *KILLED_HERE.splitlines(), ""]
    return tables + report.table(
        ["case", "time", "bytes moved / bytes of the state", "succeeded"], deaths
    ), rows


# ---- several receivers ----


def receivers(build: pathlib.Path, repeats: int) -> Result:
    """Compares a receiver that shares its source with a stuck receiver with the same receiver
    alone."""
    rows, lines = [], []
    find = [str(HERE.parent / "scripts" / "find-ucx")]
    library = subprocess.run(find, capture_output=True, text=True).stdout.strip()
    environment = {"UCX_TLS": "tcp", **({"WHERRY_UCX_LIBRARY": library} if library else {})}
    for lane, mpi in [*((lane, "") for lane in LANES), *(("blocks", mpi) for mpi in MPIS)]:
        for event, what in (("stop", "is stopped"), ("slow", "reads 1 MB/s")):
            rounds = ["0>1", f"0>1,2!{event}", "0>1"] * (STUCK_REPEATS * repeats + 1)
            with Job(
                build,
                3,
                WIDE,
                rounds,
                lanes=lane,
                delay_ms=DELAY_MS,
                environment=environment,
                mpi=mpi,
            ) as job:
                _, first, second = job.finish()
            results = received(first)
            held = {one["round"]: one["time"] for one in second if one["event"] == "held"}
            if any(held[one["round"]] > one["begin"] for one in results[1::3]):
                raise SystemExit("the second receiver was not stuck when the first one began")
            both = compare(results)
            name = f"`{lane}`, {mpi}" if mpi else f"`{lane}`"
            rows.append(both.row(f"{name}: the other one {what}", 1.15))
            lines.append(both.cells(rows[-1]))
    return report.table(
        ["lane, case", "time", "alone", "ratio", "alone, after / before"], lines
    ), rows


# ---- the page ----

REALTIME_TEXT = """\
Ranks on one host, except those of MPI, had real-time priority. So other work took no CPU time from
them, but it took memory bandwidth and cache."""
CASES = {
    "scaling": (scaling, "From several hosts"),
    "killed": (killed, "One host is killed"),
    "slow": (slow, "One host is slow"),
    "local": (local, "From several sources on one host"),
    "receivers": (receivers, "Two receivers, one of them stuck"),
}
KILLED_HERE = """\
The source in use gets SIGKILL from the receiver when half of the bytes have come. Within a host the
bytes are not checked, so those of the lost source are fetched again from another one."""
TEXTS = {
    "scaling": """\
1 GiB in 16 tensors, in place, over `stream`, checked. Each source is on a host made of network
namespaces, whose link tbf limits to {mbit} Mbit/s in the direction of the receiver. After the headers
of Ethernet, IP and TCP, {line:.1f} MB/s are left. One and three sources alternate; median of {repeats}
(lowest-highest).""",
    "killed": """\
The same with three sources. One of them gets SIGKILL after half of the time that three lines need for
1 GiB. The reports of progress say how many bytes are missing then. The bytes on the lines are those of
all three sources, with headers.""",
    "slow": """\
The same with three sources, one of them limited to {slow} Mbit/s. In the best possible split, all three
lines are busy until the end.""",
    "local": """\
Three processes have the same state and the receiver is on the same host. Default lane. Receives from
three sources and from one alternate in the same processes; median of {local} after a warm-up
(lowest-highest). "The sends wait": the receive begins 100 ms after the sends. Otherwise they begin
together, and all processes prepare their states at the same time: on 2 cores, four of them take longer
than two, which matters if there are many tensors. There is a receive from one source
before and after each receive from three. The last column compares those two: what differs from 1 there
is other work on the machine.""",
    "receivers": """\
One send of 1 GiB in 16 tensors to two receivers on the same host. The second one begins first, and is
stuck after a tenth of the bytes: SIGSTOP, or it waits so long after each chunk that it reads 1 MB/s.
{delay} ms later the first one begins. The reference is a send to the first one only, in the
same processes, before and after each; median of {stuck} after a warm-up (lowest-highest). The last
column is as above. `ucx` uses TCP. `blocks` runs over Open MPI.""",
}


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument(
        "--only", choices=CASES, action="append", help="run only this case, and write no file"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--realtime", action="store_true", help="other work takes no CPU from the ranks of one host"
    )
    arguments = parser.parse_args()
    before_each[:] = REALTIME if arguments.realtime else []
    if reason := hosts.lacking():
        raise SystemExit(f"this machine cannot run such hosts: {reason}")
    repeats = arguments.repeats
    page, rows, shares = [], [], []
    for name, (measure, title) in CASES.items():
        if arguments.only and name not in arguments.only:
            continue
        report.wait_for_quiet(arguments.wait)
        others = report.Others()
        lines, more = measure(arguments.build.resolve(), repeats)
        shares.append(others.share())
        text = TEXTS[name].format(
            mbit=MBIT, slow=SLOW_MBIT, line=LINE / 1e6, repeats=repeats, local=LOCAL_REPEATS * repeats,
            delay=DELAY_MS, stuck=STUCK_REPEATS * repeats,
        )  # fmt: skip
        text += f" Other work took {shares[-1]:.0%} of the machine."
        page += [f"## {title}", "", *text.splitlines(), "", *lines, ""]
        print("\n".join(lines), flush=True)
        rows += more
    kernel = ".".join(platform.release().split(".")[:2])
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {kernel}"
    machine += report.others_text(shares)
    head = [
        "# From several sources, and to several receivers",
        "",
        "`make bench-sources`.",
        report.measured(machine),
        *(REALTIME_TEXT.splitlines() if arguments.realtime else []),
        "",
    ]
    if not arguments.only:
        report.write(HERE / "results" / "sources.md", [*head, *page])
    return report.unmet(rows)


if __name__ == "__main__":
    sys.exit(main())
