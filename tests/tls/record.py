"""What the relay's attacks led to, as a page. WHERRY_RELAY_TABLE=FILE writes it at the end of the
run."""

from __future__ import annotations

import collections
import dataclasses


@dataclasses.dataclass
class Row:
    tried: int = 0
    results: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


ROWS: dict[tuple[str, str, str, str], Row] = collections.defaultdict(Row)
ACCEPTED = "**altered, accepted**"
INTACT = "as sent"

HEAD = """\
# The relay

An attacker between two ranks, and between `wherry serve` and `wherry fetch`, who changes what they
send. This page is written by

    WHERRY_RELAY_TABLE=$PWD/bench/results/relay.md \\
        pytest tests/tls/test_tls_relay.py tests/tls/test_tls_serve.py

A trial joins, exchanges a message and receives a state, while one connection is attacked.
*Accepted* counts the trials after which a rank had other bytes than were sent, and no error. It
must be 0 for everything that TLS carries. The rows of "clear" (`allow_insecure`) show that the
attacks work. So does the replaced chunk of "control", which leaves data and digests in clear text
([security.md](../../docs/security.md)). "As sent" means that the trial succeeded with the right
bytes: another connection did the work, a damaged chunk was requested again, nobody waited for the
attacked bytes, or TLS ignores them.

"""


def add(mode: str, connection: str, part: str, attack: str, result: str) -> None:
    """
    :param part: the bytes that were attacked.
    :param result: "altered", "intact", or an error.
    """
    row = ROWS[mode, connection, part, attack]
    row.tried += 1
    kind = {"altered": ACCEPTED, "intact": INTACT}.get(result, result.split(":")[0])
    row.results[kind] += 1


def table() -> str:
    lines = [
        "| mode | connection | what was attacked | how | trials | accepted | results |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (mode, connection, part, attack), row in sorted(ROWS.items()):
        results = ", ".join(f"{kind} {count}" for kind, count in row.results.most_common())
        accepted = row.results[ACCEPTED]
        lines.append(
            f"| {mode} | {connection} | {part} | {attack} | {row.tried} | {accepted} | {results} |"
        )
    return HEAD + "\n".join(lines) + "\n"
