#!/usr/bin/env python3
"""Measures Wherry's lanes and plain sockets between two hosts made of network namespaces, on links
with a known rate and delay.

compare_hosts.py [--only LINK] [--repeats N] [--quick] [--wait SECONDS] prints a table and writes
bench/results/hosts.md. It exits with 1 if a result is worse than its bound. Needs root.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import socket
import statistics
import sys
import time

import torch

sys.dont_write_bytecode = True  # keep the source tree clean
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "tests" / "python"),
    str(HERE.parent / "tests" / "hosts"),
]
import hosts  # noqa: E402
import lane_reach  # noqa: E402
import launch  # noqa: E402
import report  # noqa: E402

import wherry  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
REPEATS = 3
MBIT = 1000
LINE = MBIT * 1e6 / 8
BOUND = 0.90  # minimum share of the rate of the line
PORT = 29700
PLAIN = "plain"
LANES = ("stream", "ucx")
TEXT = """\
`make bench-hosts`. Two hosts made of network namespaces, on a link that tbf limits to 1 Gbit/s. The
delay is added by a forwarder between two TAP interfaces (`tests/hosts/wire.py`). In place, verify
on. The time runs from a common start until the receiver has returned from its call, and includes the
request, opening connections and TCP's slow start. The rate is that of the state's bytes; the line
carries 125 MB/s, of which headers of Ethernet, IP and TCP take 4.4% at 1500 bytes per frame, so that
0.956 is the highest possible share. Median of {repeats} (lowest-highest). Plain sockets: one new
connection, `sendall` and `recv_into`, in the same processes, alternating.
"""
AFTER = """\
Besides the bytes, a call needs about 12 round trips, including TCP's slow start. This is why 256 MiB
do not fill the line at 20 ms.
"""


@dataclasses.dataclass(frozen=True)
class Link:
    label: str
    delay_ms: float = 0  # delay each way
    has_bound: bool = True


LINKS = {
    "near": Link("1 Gbit/s"),
    "far": Link("1 Gbit/s, 20 ms round trip", 10),
    "farther": Link("1 Gbit/s, 20 ms each way", 20, has_bound=False),
}
SIZES = {"1 GiB": GIB, "256 MiB": 256 * MIB}


# ---- a rank ----


def plain(rank: int, place: str, data: torch.Tensor) -> None:
    """Moves the data without Wherry: one connection, the bytes, and one byte as confirmation."""
    view = memoryview(data.numpy()).cast("B")
    if rank == 0:
        with socket.create_server((place, PORT)) as listener:
            launch.say("listening")
            connection, _ = listener.accept()
            with connection:
                connection.sendall(view)
                assert connection.recv(1) == b"!"
        return
    until = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((place, PORT))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < until
    with connection:
        done = 0
        while done < len(view):
            done += connection.recv_into(view[done:])
        connection.sendall(b"!")


def rank_body(modes: list[str], sizes: list[int], repeats: int, place: str) -> list[list[float]]:
    """Returns the seconds of each repeat, per mode and size. All modes and sizes take turns."""
    results: list[list[float]] = [[] for _ in modes for _ in sizes]
    number = 0
    with wherry.Group.join("env://", 60) as group:
        for _ in range(repeats):
            for at, (mode, size) in enumerate((mode, size) for mode in modes for size in sizes):
                number += 1
                data = torch.full((size // 8,), number if group.rank == 0 else -1)
                group.barrier(number, 60)
                begin = time.perf_counter()
                if mode == PLAIN:
                    plain(group.rank, place, data)
                elif group.rank == 0:
                    wherry.send(group, [1], {"w": data}, lanes=mode, timeout=300)
                else:
                    wherry.recv(group, 0, into={"w": data}, lanes=mode, timeout=300)
                results[at].append(time.perf_counter() - begin)
                assert bool((data == number).all())
    return results


# ---- all links ----


def measure(link: Link, modes: list[str], sizes: list[int], repeats: int) -> list[list[float]]:
    """Returns the seconds at the receiver, per mode and then per size."""
    with hosts.World(2, rate_mbit=MBIT, delay_ms=link.delay_ms) as world:
        with launch.job(2, hosts=world.hosts, env=world.environment()) as job:
            seconds = (len(modes) * sum(sizes) * repeats / LINE) * 4 + 60
            results = job.run(
                rank_body, modes, sizes, repeats, world.hosts[0].address(), timeout=seconds
            )[1]
    launch.end_fork_server()
    return results


def share(seconds: list[float], size: int) -> float:
    return size / statistics.median(seconds) / LINE


def rate(seconds: list[float], size: int) -> str:
    rates = sorted(size / one / 1e6 for one in seconds)
    return f"{statistics.median(rates):.1f} MB/s ({rates[0]:.1f}-{rates[-1]:.1f})"


def rows(
    link: Link, modes: list[str], sizes: dict[str, int], results: list[list[float]]
) -> list[report.Row]:
    """One row per lane and size."""
    found = {}
    for at, (mode, size) in enumerate((mode, size) for mode in modes for size in sizes):
        found[mode, size] = results[at]
    lines = []
    for label, size in sizes.items():
        for mode in modes:
            if mode == PLAIN:
                continue
            ratio = share(found[mode, label], size)
            rate_text = rate(found[mode, label], size)
            plain_share = f"{share(found[PLAIN, label], size):.3f}"
            bound = BOUND if link.has_bound and size == GIB else None
            case = f"{link.label}, {label}, {mode}"
            lines.append(report.Row(case, rate_text, plain_share, ratio, bound))
    return lines


def page(rows: list[report.Row], absent: list[str], repeats: int, machine: str) -> list[str]:
    return [
        "# Between hosts",
        "",
        *TEXT.format(repeats=repeats).splitlines(),
        report.measured(machine),
        *([f"Not measured: {one}." for one in absent]),
        "",
        *report.table(
            ["link, bytes, lane", "rate", "share of the line", "plain sockets: share of the line"],
            [[row.case, row.ours, f"{row.ratio:.3f}", row.against] for row in rows],
        ),
        "",
        *AFTER.splitlines(),
        "",
    ]


def main() -> int:
    parser = report.parser(__doc__, quick="256 MiB once, for development", each="link")
    parser.add_argument("--only", choices=LINKS, help="run only this link, and write no file")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--ours", action="store_true", help="with --only: Wherry alone; prints its seconds as JSON"
    )
    parser.add_argument("--size", choices=SIZES, default="256 MiB", help="with --ours: state size")
    arguments = parser.parse_args()
    if reason := hosts.lacking(wire=True):
        raise SystemExit(f"this machine cannot run such hosts: {reason}")
    reasons = {lane: lane_reach.lacking(lane) for lane in LANES}
    lanes = [lane for lane in LANES if not reasons[lane]]
    if arguments.ours:
        seconds = measure(LINKS[arguments.only], lanes, [SIZES[arguments.size]], 1)
        print(json.dumps(dict(zip(lanes, seconds))))
        return 0
    modes = [PLAIN, *lanes]
    sizes = {"256 MiB": SIZES["256 MiB"]} if arguments.quick else SIZES
    repeats = 1 if arguments.quick else arguments.repeats
    lines, shares = [], []
    for name, link in LINKS.items():
        if arguments.only not in (None, name):
            continue
        report.wait_for_quiet(arguments.wait)
        others = report.Others()
        lines += rows(link, modes, sizes, measure(link, modes, list(sizes.values()), repeats))
        shares.append(others.share())
    congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    kernel = ".".join(platform.release().split(".")[:2])
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {kernel}, TCP with {congestion}"
    machine += report.others_text(shares)
    absent = [f"`{lane}` ({reason})" for lane, reason in reasons.items() if reason]
    text = page(lines, absent, repeats, machine)
    print("\n".join(text))
    if not arguments.only and not arguments.quick:
        report.write(HERE / "results" / "hosts.md", text)
    return report.unmet(lines)


if __name__ == "__main__":
    sys.exit(main())
