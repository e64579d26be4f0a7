/**
 * @file fake_nccl.h  A NCCL that needs no device: what tests ask of it beyond the calls that the
 * library makes.
 *
 * A communicator of two ranks is a Unix socket, and a message is work on a stream of the fake
 * driver (tests/fake_cuda/). It does nothing at once, as the real one with blocking = 0: a message
 * gets on the stream only after it was asked for the second time whether it has. Memory that is not
 * a device's, lengths that differ and calls before the last one is through are faults. A message to
 * a peer that is gone waits until the communicator is aborted, as a kernel does. Tests find these
 * functions by dlsym in the library that WHERRY_NCCL_LIBRARY names.
 *
 * Of the environment: FAKE_NCCL_VERSION (22707), FAKE_NCCL_REFUSE (1: the two never become a
 * communicator), FAKE_NCCL_DEAF (1: nor does it say so), FAKE_NCCL_STALL (of a number of messages
 * that go through: those behind them do not).
 */
#ifndef WH_TESTS_FAKE_NCCL_H
#define WH_TESTS_FAKE_NCCL_H

#include <stdint.h>

/** Lets call number `number` from now on answer `result`; 0: none. */
void fake_nccl_fail_at(uint64_t number, int result);

/** How many calls that may fail there were since fake_nccl_fail_at was last called. */
uint64_t fake_nccl_calls(void);

/**
 * Communicators that were begun, that were aborted, and messages that are through, of this process.
 */
uint64_t fake_nccl_begun(void);
uint64_t fake_nccl_aborted(void);
uint64_t fake_nccl_messages(void);

#endif
