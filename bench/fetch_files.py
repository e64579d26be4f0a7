#!/usr/bin/env python3
"""fetch_files.py BUILD_DIR [--size MIB] [--repeats N] [--write]: compares `wherry fetch` on
loopback into a file in memory with plain sockets, with as many connections, and with curl from
nginx. All take turns with the same file. --write puts the table into bench/results/fetch.md. Exits
with 1 if a result is worse than its bound. Needs nginx and curl (scripts/install-deps bench)."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # keep the source tree clean
import report as report_page  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent

NGINX = """
worker_processes 2; daemon off; pid {place}/nginx.pid; error_log {place}/nginx.log;
events {{ }}
http {{ sendfile on; access_log off; client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fast;
       uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
       server {{ listen 127.0.0.1:{port}; root {place}/www; }} }}
"""


def make_file(path, size):
    """Creates a safetensors file of random bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(size >> 20):
            file.write(block)


def start_nginx(place):
    port = report_page.free_port()
    (place / "nginx.conf").write_text(
        "user root;" * (os.geteuid() == 0) + NGINX.format(place=place, port=port)
    )
    server = subprocess.Popen(
        ["nginx", "-c", place / "nginx.conf", "-e", place / "nginx.log", "-p", place]
    )
    for _ in range(200):
        if (
            subprocess.run(
                [
                    "curl",
                    "-sf",
                    "-o",
                    "/dev/null",
                    "-r",
                    "0-0",
                    f"http://127.0.0.1:{port}/file.safetensors",
                ]
            ).returncode
            == 0
        ):
            return server, f"http://127.0.0.1:{port}/file.safetensors"
        time.sleep(0.05)
    sys.exit("nginx does not start: " + (place / "nginx.log").read_text())


def start_serve(wherry, path):
    server = subprocess.Popen(
        [wherry, "serve", "--json", "-q", path], stdout=subprocess.PIPE, text=True
    )
    text = ""
    while not text.endswith("}\n"):
        text += server.stdout.readline()
    return server, json.loads(text)


def timed(*command, **environment):
    begin = time.monotonic()
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    return time.monotonic() - begin, done.stdout


def measure(build, place, size, repeats):
    """Returns {name: [seconds]}, and the lane that `wherry fetch` chose."""
    source, target = place / "www" / "file.safetensors", place / "target"
    target.mkdir()
    source.parent.mkdir()
    make_file(source, size)
    nginx, url = start_nginx(place)
    serve, told = start_serve(build / "cli/wherry", source)
    fetch = [
        build / "cli/wherry",
        "fetch",
        "-q",
        "--json",
        told["address"],
        "-o",
        target / "fetched.safetensors",
    ]
    seconds, lane = {"fetch": [], "fetch, stream": [], "sockets": [], "curl": []}, "?"

    def clear():
        for path in target.iterdir():
            path.unlink()

    try:
        for repeat in range(repeats + 1):
            clear()
            took, out = timed(*fetch, WHERRY_TOKEN=told["token"])
            lane = json.loads(out)["lane"]
            if repeat == 0 and (target / "fetched.safetensors").read_bytes() != source.read_bytes():
                sys.exit("the fetched file differs from the served one")
            clear()
            streamed = timed(*fetch, "--lanes", "stream", WHERRY_TOKEN=told["token"])[0]
            clear()
            plain = float(timed(build / "bench/bench_file", source, target / "plain", "2")[1])
            clear()
            curled = timed("curl", "-s", "-o", target / "curled", url)[0]
            if repeat:  # The first repeat is a warm-up.
                for name, one in zip(seconds, (took, streamed, plain, curled)):
                    seconds[name].append(one)
    finally:
        serve.terminate()
        nginx.terminate()
        serve.wait()
        nginx.wait()
    return seconds, lane


def report(size, seconds, lane):
    rates = {
        name: size / statistics.median(all_of_it) * 1e-9 for name, all_of_it in seconds.items()
    }
    cases = [
        ("plain sockets, 2 connections", "fetch", "sockets", 0.8, f"default lane ({lane})"),
        ("plain sockets, 2 connections", "fetch, stream", "sockets", 0.8, "lane stream"),
        ("curl from nginx", "fetch", "curl", 1.3, f"default lane ({lane})"),
        ("curl from nginx", "fetch, stream", "curl", 1.3, "lane stream"),
    ]
    rows = []
    for against, ours, other, bound, how in cases:
        ratio = rates[ours] / rates[other]
        figures = (f"{rates[ours]:.2f}", f"{rates[other]:.2f}")
        rows.append(report_page.Row(f"{how}, against {against}", *figures, ratio, bound))
    machine = f"{os.cpu_count()} cores"
    lines = [
        "`make bench-fetch`. `wherry fetch` on loopback into a file in memory: the whole command, with",
        f"the check of the data. {size / 2**30:.2f} GiB. All take turns; median of {len(seconds['fetch'])}.",
        report_page.measured(machine),
        "",
        *report_page.table(
            ["fetch", "GB/s", "the other, GB/s", "ratio"], [row.cells() for row in rows]
        ),
    ]
    return "\n".join(lines) + "\n", rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--size", type=int, default=1024, help="MiB of the file (default 1024)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not shutil.which("nginx") or not shutil.which("curl"):
        sys.exit("nginx and curl are missing: scripts/install-deps bench")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        text, rows = report(
            arguments.size << 20,
            *measure(
                pathlib.Path(arguments.build).resolve(),
                pathlib.Path(place),
                arguments.size << 20,
                arguments.repeats,
            ),
        )
    print(text, end="")
    if arguments.write:
        (ROOT / "bench/results/fetch.md").write_text("# Fetching files\n\n" + text)
    return report_page.unmet(rows)


if __name__ == "__main__":
    sys.exit(main())
