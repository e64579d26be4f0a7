#!/usr/bin/env python3
"""Between two hosts made of network namespaces, on links whose rate and delay are known: Wherry's lanes, and plain sockets beside them.

python bench/compare_hosts.py [--only LINK] [--repeats N] [--quick] [--wait SECONDS]: prints a table and writes bench/results/hosts.md. Needs root.
"""

from __future__ import annotations

import argparse
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

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent / "tests" / "python"),
    str(HERE.parent / "tests" / "hosts"),
]
import ferry_report  # noqa: E402
import hosts  # noqa: E402
import lane_reach  # noqa: E402
import launch  # noqa: E402

import wherry  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
REPEATS = 3
MBIT = 1000
LINE = MBIT * 1e6 / 8
REQUIRED = 0.90
PORT = 29700
PLAIN = "plain"
LANES = ("stream", "ucx")


@dataclasses.dataclass(frozen=True)
class Link:
    label: str
    delay_ms: float = 0  # each way
    required: bool = True


LINKS = {
    "near": Link("1 Gbit/s"),
    "far": Link("1 Gbit/s, 20 ms there and back", 10),
    "farther": Link("1 Gbit/s, 20 ms each way", 20, required=False),
}
SIZES = {"1 GiB": GIB, "256 MiB": 256 * MIB}


# ---- a rank ----


def plain(rank: int, place: str, data: torch.Tensor) -> None:
    """As one would without a library: a connection, the bytes, and a byte that says that they have come."""
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


def rank_body(ways: list[str], sizes: list[int], repeats: int, place: str) -> list[list[float]]:
    """Seconds of each way and size, of each repeat. Way and size change from transfer to transfer, so that all see the same machine."""
    results: list[list[float]] = [[] for _ in ways for _ in sizes]
    number = 0
    with wherry.Group.join("env://", 60) as group:
        for _ in range(repeats):
            for at, (way, size) in enumerate((way, size) for way in ways for size in sizes):
                number += 1
                data = torch.full((size // 8,), number if group.rank == 0 else -1)
                group.barrier(number, 60)
                begin = time.perf_counter()
                if way == PLAIN:
                    plain(group.rank, place, data)
                elif group.rank == 0:
                    wherry.send(group, [1], {"w": data}, lanes=way, timeout=300)
                else:
                    wherry.recv(group, 0, into={"w": data}, lanes=way, timeout=300)
                results[at].append(time.perf_counter() - begin)
                assert bool((data == number).all())
    return results


# ---- all links ----


def measure(link: Link, ways: list[str], sizes: list[int], repeats: int) -> list[list[float]]:
    """Seconds at the receiver, for each way and, within it, for each size."""
    with hosts.World(2, rate_mbit=MBIT, delay_ms=link.delay_ms) as world:
        with launch.job(2, hosts=world.hosts, env=world.environment()) as job:
            seconds = (len(ways) * sum(sizes) * repeats / LINE) * 4 + 60
            results = job.run(
                rank_body, ways, sizes, repeats, world.hosts[0].address(), timeout=seconds
            )[1]
    launch.end_nursery()
    return results


def share(seconds: list[float], size: int) -> float:
    return size / statistics.median(seconds) / LINE


def rate(seconds: list[float], size: int) -> str:
    rates = sorted(size / one / 1e6 for one in seconds)
    return f"{statistics.median(rates):.1f} MB/s ({rates[0]:.1f}-{rates[-1]:.1f})"


def rows(
    link: Link, ways: list[str], sizes: dict[str, int], results: list[list[float]]
) -> list[list[str]]:
    """A line of the table for each lane and size."""
    found = {}
    for at, (way, size) in enumerate((way, size) for way in ways for size in sizes):
        found[way, size] = results[at]
    lines = []
    for label, size in sizes.items():
        for way in ways:
            if way == PLAIN:
                continue
            ratio = share(found[way, label], size)
            required = link.required and size == GIB
            lines.append([
                f"{link.label}, {label}", way, rate(found[way, label], size), f"{ratio:.3f}",
                f"{share(found[PLAIN, label], size):.3f}",
                f"at least {REQUIRED:.2f}" if required else "-", ("yes" if ratio >= REQUIRED else "**missed**") if required else "-",
            ])  # fmt: skip
    return lines


def page(lines: list[list[str]], absent: list[str], repeats: int, machine: str) -> list[str]:
    return [
        "# Between hosts",
        "",
        "`make bench-hosts`: two hosts made of network namespaces, on a link that tbf limits to 1 Gbit/s; the delay is a forwarder's between two TAP",
        "interfaces (`tests/hosts/wire.py`). In place, digests on, from a common beginning until the receiver has returned from its call: asking, the",
        "opening of connections and the start of TCP are included. Bytes of the state a second, against the 125 MB/s of the line; of these, headers",
        f"of Ethernet, IP and TCP take 4.4% at 1500 bytes a frame, so that 0.956 is the most that can be. Median of {repeats} (lowest-highest).",
        "Plain sockets: one new connection, `sendall` and `recv_into`, in the same processes, in turn.",
        f"Machine: {machine}.",
        *([f"Left out: {one}." for one in absent]),
        "",
        *ferry_report.table(
            ["link, bytes", "lane", "rate", "of the line", "plain sockets", "required", "holds"],
            lines,
        ),
        "",
        "What a call needs beyond the bytes is some round trips, and TCP's time to find the rate of the line: about 12 round trips in all, which",
        "is why 256 MiB are short of the line at 20 ms.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=LINKS, help="this link alone; nothing is written")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="256 MiB once, for development: the results are not kept",
    )
    parser.add_argument(
        "--ours", action="store_true", help="with --only: Wherry alone; prints its seconds as JSON"
    )
    parser.add_argument("--size", choices=SIZES, default="256 MiB", help="with --ours: how much")
    parser.add_argument(
        "--wait", type=float, default=0, help="before each link, wait so long for a quiet machine"
    )
    arguments = parser.parse_args()
    if reason := hosts.lacking(wire=True):
        raise SystemExit(f"there can be no hosts here: {reason}")
    reasons = {lane: lane_reach.lacking(lane) for lane in LANES}
    lanes = [lane for lane in LANES if not reasons[lane]]
    if arguments.ours:
        seconds = measure(LINKS[arguments.only], lanes, [SIZES[arguments.size]], 1)
        return print(json.dumps(dict(zip(lanes, seconds))))
    ways = [PLAIN, *lanes]
    sizes = {"256 MiB": SIZES["256 MiB"]} if arguments.quick else SIZES
    repeats = 1 if arguments.quick else arguments.repeats
    lines, shares = [], []
    for name, link in LINKS.items():
        if arguments.only not in (None, name):
            continue
        ferry_report.wait_for_quiet(arguments.wait)
        others = ferry_report.Others()
        lines += rows(link, ways, sizes, measure(link, ways, list(sizes.values()), repeats))
        shares.append(others.share())
    congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    kernel = ".".join(platform.release().split(".")[:2])
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {kernel}, TCP with {congestion}"
    machine += ferry_report.others_text(shares)
    absent = [f"`{lane}` ({reason})" for lane, reason in reasons.items() if reason]
    text = "\n".join(page(lines, absent, repeats, machine))
    print(text)
    if not arguments.only and not arguments.quick:
        (HERE / "results" / "hosts.md").write_text(text)
    return None


if __name__ == "__main__":
    main()
