"""What the relay's attacks led to, as a table. WHERRY_RELAY_TABLE=FILE writes it at the end of the
run: that is bench/results/relay.md."""

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
    return "\n".join(lines) + "\n"
