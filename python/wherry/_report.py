"""What is told of a transfer when it is over: a line in the log, and its failures."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from wherry._stats import Outcome, Stats

logger = logging.getLogger("wherry")


def _figures(stats: Stats) -> str:
    if not stats.lane:
        return f"nothing had to move; {stats.total_seconds:.3f} s in all"
    return (
        f"{stats.bytes_moved / 1e6:.1f} MB in {stats.data_seconds:.3f} s, {stats.rate / 1e9:.2f} GB/s over {stats.lane}; "
        f"{stats.total_seconds:.3f} s in all"
    )


def _warn_of_slowness(peer: int, stats: Stats) -> None:
    if because := stats.slow_because():
        logger.warning(
            "rank %d is on this host and is reached by '%s' all the same, which is slower: %s", peer, stats.lane, because
        )


def tell_received(peer: int, stats: Stats) -> None:
    """Says what a receive did."""
    logger.info("received from rank %d: %s", peer, _figures(stats))
    _warn_of_slowness(peer, stats)


def tell_sent(outcomes: Sequence[Outcome]) -> None:
    """Says what a send did."""
    for one in outcomes:
        if one.error is None:
            logger.info("sent to rank %d: %s", one.rank, _figures(one.stats))
            _warn_of_slowness(one.rank, one.stats)


def raise_first(outcomes: Sequence[Outcome]) -> None:
    """Raises the first failure, with the outcomes of all."""
    for one in outcomes:
        if one.error is not None:
            one.error.outcomes = tuple(outcomes)
            raise one.error
