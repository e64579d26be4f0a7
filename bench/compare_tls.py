#!/usr/bin/env python3
"""Measures what TLS costs: messages, joining, connecting, and states over `encrypt=all`, against
Wherry without TLS and against other programs with the same cipher.

compare_tls.py BUILD [--only CASE] [--quick] [--wait SECONDS] prints a table and writes
bench/results/tls.md. It exits with 1 if a result is worse than its bound. Needs openssl, nginx and
curl; the case `link` needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # keep the source tree clean
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "hosts")]
import hosts  # noqa: E402
import report  # noqa: E402

MIB = 1 << 20
SIZE_MIB = 1024
MBIT = 1000
LINE = MBIT * 1e6 / 8
PORT = 29800
RANKS = 256
CIPHER = "TLS_AES_128_GCM_SHA256"
SECRET = "a secret of the benchmark, which is long enough"

TEXT = """\
`make bench-tls`. A group over TCP on loopback (`shortcut=0`). "Clear" is a group with
`allow_insecure`, "TLS" one with a secret; both are in the same processes and take turns. States are
16 tensors, received in place over the lane `stream`: without TLS they are checked against digests,
with `encrypt=all` they are encrypted. The other programs use {cipher} too, and write to /dev/null:
`openssl s_server -WWW` to `openssl s_client`, and nginx to curl, both over one connection. The link
is between two hosts made of network namespaces, limited by tbf. Median (lowest-highest).
"""

NGINX = """
worker_processes 2; daemon off; pid {place}/nginx.pid; error_log {place}/nginx.log;
events {{ }}
http {{ sendfile on; access_log off; client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
       fastcgi_temp_path {place}/fast; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
       server {{ listen 127.0.0.1:{port} ssl; root {place}; ssl_protocols TLSv1.3;
                ssl_conf_command Ciphersuites {cipher};
                ssl_certificate {place}/cert.pem; ssl_certificate_key {place}/key.pem; }} }}
"""


def ours(build: pathlib.Path, *arguments: object) -> dict:
    """Runs a case of bench_tls."""
    command = [build / "bench" / "bench_tls", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def against_clear(
    case: str, seconds: dict, unit: str, scale: float, bound: float, count: int = 1
) -> report.Row:
    ratio = statistics.median(seconds["tls"]) / statistics.median(seconds["clear"])
    texts = [report.times(seconds[kind], unit, scale, count) for kind in ("tls", "clear")]
    return report.Row(case, *texts, ratio, bound, at_most=True)


# ---- messages and connections ----


def run_talk(build: pathlib.Path, quick: bool) -> list[report.Row]:
    seconds = ours(build, "talk", 5 if quick else 41)
    return [against_clear("round trip of a message", seconds, "µs", 1e6, 1.4)]


def run_join(build: pathlib.Path, quick: bool) -> list[report.Row]:
    seconds = ours(build, "join", RANKS, 1 if quick else 7)
    return [against_clear(f"{RANKS} ranks join", seconds, "s", 1, 4.0)]


def run_connect(build: pathlib.Path, quick: bool) -> list[report.Row]:
    found = ours(build, "connect", 5 if quick else 25)
    rows = []
    for kind, label, bound in (("first", "first", 15.0), ("later", "later", 2.0)):
        tls, clear = found["tls"][kind], found["clear"][kind]
        more = (statistics.median(tls) - statistics.median(clear)) * 1e3
        texts = [report.times(one, "ms", 1e3) for one in (tls, clear)]
        case = f"joining a running group, {label} in a process; the ratio is the difference in ms"
        rows.append(report.Row(case, *texts, more, bound, at_most=True))
    return rows


# ---- states ----


@contextlib.contextmanager
def ended(process: subprocess.Popen):
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def nginx(place: pathlib.Path):
    port = report.free_port()
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]
        + ["-keyout", place / "key.pem", "-out", place / "cert.pem", "-subj", "/CN=localhost"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    config = place / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(user + NGINX.format(place=place, port=port, cipher=CIPHER))
    command = ["nginx", "-c", config, "-e", place / "nginx.log", "-p", place]
    with ended(subprocess.Popen(command)):
        fetch = ["curl", "-sfk", "--tlsv1.3", "--tls13-ciphers", CIPHER, "-o", "/dev/null"]
        fetch.append(f"https://127.0.0.1:{port}/data")
        for _ in range(100):
            if subprocess.run([*fetch, "-r", "0-0"]).returncode == 0:
                break
            time.sleep(0.05)
        else:
            raise SystemExit("nginx does not start: " + (place / "nginx.log").read_text())
        yield lambda: subprocess.run(fetch, check=True)


@contextlib.contextmanager
def s_server(place: pathlib.Path):
    key = ["-tls1_3", "-ciphersuites", CIPHER, "-psk", "ab" * 32, "-psk_identity", "bench"]
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-nocert", "-WWW", *key]
    with ended(
        subprocess.Popen(
            command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    ) as server:
        for line in server.stdout:
            if found := re.match(r"ACCEPT (\S+)", line):
                break
        else:
            raise SystemExit("openssl s_server does not start")
        fetch = ["openssl", "s_client", "-connect", found[1], "-quiet", *key]

        def once() -> None:
            with open("/dev/null", "w") as nowhere:
                subprocess.run(
                    fetch,
                    input=b"GET /data HTTP/1.0\r\n\r\n",
                    stdout=nowhere,
                    stderr=subprocess.DEVNULL,
                )

        yield once


def timed(call) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def run_state(build: pathlib.Path, quick: bool) -> list[report.Row]:
    size_mib, rounds = (128, 1) if quick else (SIZE_MIB, 4)
    size = size_mib * MIB
    found: dict[str, list[float]] = {"clear": [], "tls": [], "openssl": [], "curl": []}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, contextlib.ExitStack() as stack:
        place = pathlib.Path(folder)
        os.chmod(place, 0o755)
        with open(place / "data", "wb") as file:
            for _ in range(size_mib):
                file.write(os.urandom(MIB))
        curl = stack.enter_context(nginx(place))
        openssl = stack.enter_context(s_server(place))
        for number in range(rounds + 1):
            mine = ours(build, "state", size_mib, 3)
            others = {"openssl": timed(openssl), "curl": timed(curl)}
            if number:  # The first round is a warm-up.
                for kind in ("clear", "tls"):
                    found[kind] += mine[kind]
                for kind, seconds in others.items():
                    found[kind].append(seconds)
    rate = {kind: size / statistics.median(seconds) for kind, seconds in found.items()}
    text = {kind: report.rates(seconds, size) for kind, seconds in found.items()}
    label = f"{size_mib / 1024:g} GiB, encrypted, against "
    faster = max("openssl", "curl", key=lambda kind: rate[kind])
    rows = [
        report.Row(
            label + "clear and checked",
            text["tls"],
            text["clear"],
            rate["tls"] / rate["clear"],
            0.35,
        )
    ]
    for kind, name in (("openssl", "openssl s_server and s_client"), ("curl", "nginx and curl")):
        bound = 1.2 if kind == faster else None
        rows.append(
            report.Row(label + name, text["tls"], text[kind], rate["tls"] / rate[kind], bound)
        )
    return rows


# ---- a link ----


def start_on(host: hosts.Host, command: list[object], encrypt: str) -> subprocess.Popen:
    spaces = [f"--{kind}={host.namespace(kind)}" for kind in ("net", "uts", "ipc", "pid")]
    spaces.append(f"--mount={host.namespace('mnt')}")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")},
        "WHERRY_SECRET": SECRET,
        "WHERRY_ENCRYPT": encrypt,
    }
    return subprocess.Popen(
        ["nsenter", *spaces, *map(str, command)], env=environment, stdout=subprocess.PIPE
    )


def run_link(build: pathlib.Path, quick: bool) -> list[report.Row]:
    if reason := hosts.lacking():
        raise SystemExit(f"this machine cannot run such hosts: {reason}")
    size_mib, repeats = (128, 1) if quick else (SIZE_MIB, 3)
    found = {}
    with hosts.World(2, rate_mbit=MBIT) as world:
        address = f"tcp://{world.hosts[0].address()}:{PORT}"
        for encrypt in ("all", "control"):
            command = [build / "bench" / "bench_tls", "rank"]
            ranks = [
                start_on(world.hosts[rank], [*command, rank, address, size_mib, repeats], encrypt)
                for rank in (0, 1)
            ]
            outputs = [one.communicate(timeout=300)[0] for one in ranks]
            if any(one.returncode for one in ranks):
                raise SystemExit("a rank failed")
            found[encrypt] = json.loads(outputs[1])["seconds"]
    share = size_mib * MIB / statistics.median(found["all"]) / LINE
    texts = [report.rates(found[one], size_mib * MIB) for one in ("all", "control")]
    case = f"{size_mib / 1024:g} GiB over {MBIT / 1000:g} Gbit/s, encrypted; share of the line"
    return [report.Row(case, *texts, share, 0.90)]


# ---- all cases ----

CASES = {
    "talk": run_talk,
    "join": run_join,
    "connect": run_connect,
    "state": run_state,
    "link": run_link,
}


def main() -> int:
    parser = report.parser(__doc__, quick="small and few, for development")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", choices=CASES, help="run only this case, and write no file")
    arguments = parser.parse_args()
    for tool in ("openssl", "nginx", "curl"):
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is missing: scripts/install-deps bench")
    rows, shares = [], []
    for name, run in CASES.items():
        if arguments.only in (None, name):
            report.wait_for_quiet(arguments.wait)
            others = report.Others()
            rows += run(arguments.build.resolve(), arguments.quick)
            shares.append(others.share())
    kernel = ".".join(platform.release().split(".")[:2])
    library = subprocess.run(["openssl", "version"], capture_output=True, text=True).stdout.split()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {kernel}, OpenSSL {library[1]}"
    text = [
        "# TLS",
        "",
        *TEXT.format(cipher=CIPHER).splitlines(),
        report.measured(machine + report.others_text(shares)),
        "",
        *report.table(["case", "TLS", "the other", "ratio"], [row.cells() for row in rows]),
        "",
    ]
    print("\n".join(text))
    if not arguments.only and not arguments.quick:
        report.write(HERE / "results" / "tls.md", text)
    return report.unmet(rows)


if __name__ == "__main__":
    sys.exit(main())
