/**
 * @file fake_nccl.h  A fake NCCL that needs no device. This header has the functions for tests,
 * beyond NCCL's own API.
 *
 * A communicator has two ranks, connected by a Unix socket. A message is work on a stream of the
 * fake driver (tests/fake_cuda/). As in NCCL with blocking = 0, calls return before they are done:
 * a message is queued on the stream at the second query of its state. Errors: a buffer outside
 * device memory, lengths that differ between the ranks, and a call while another is in progress. A
 * message to a peer that is gone waits until the communicator is aborted, as a kernel does. Tests
 * find these functions with dlsym in the library that WHERRY_NCCL_LIBRARY names.
 *
 * Environment variables: FAKE_NCCL_VERSION (default 22707), FAKE_NCCL_REFUSE (1: creating a
 * communicator fails), FAKE_NCCL_DEAF (1: creating a communicator never ends), FAKE_NCCL_STALL
 * (number of messages that succeed; later ones hang).
 */
#ifndef WH_TESTS_FAKE_NCCL_H
#define WH_TESTS_FAKE_NCCL_H

#include <stdint.h>

/** Makes the `number`-th call from now on return `result`; 0: none. */
void fake_nccl_fail_at(uint64_t number, int result);

/** Number of calls that can fail, since the last call of fake_nccl_fail_at. */
uint64_t fake_nccl_calls(void);

/** Per process: communicators created, communicators aborted, and messages completed. */
uint64_t fake_nccl_begun(void);
uint64_t fake_nccl_aborted(void);
uint64_t fake_nccl_messages(void);

#endif
