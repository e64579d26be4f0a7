/**
 * @file wherry/ready.h  A state made ready to be sent or received into, ahead of time.
 *
 * Before the first byte moves, a send walks its state and writes the manifest, and a receive walks its target, or reads that and plans: a fifth to half a
 * microsecond a tensor, which for many small tensors is about as long as moving them. A program whose state keeps its tensors from step to step, as an engine that trains one model does, need
 * not wait for that when something has crashed. It does it once, when it starts:
 *
 *     wherry_ready_create(transport, state, NULL, &ready, &error);
 *     ...
 *     options.ready = ready;
 *     source:    wherry_checkpoint_send(transport, (int32_t[]){2}, 1, NULL, &options, NULL, &error);
 *     receiver:  wherry_checkpoint_recv(transport, 0, &options, NULL, &error);
 *
 * The bytes of the tensors are not part of it: they may change between calls, like those of any state. Everything else is: plain values are sent as they were when
 * it was made ready, so that a state with one that changes, such as the number of a step, is made ready anew, or has that value beside it. A receiver's plan holds
 * for a source with the same plain values, and, where there are DTensors, for one that is the same rank; from others it is received as if nothing were ready.
 *
 * What is ready is never changed by using it: any number of calls, at once, from any threads, of any transport of the same rank. All since 0.1.
 */
#ifndef WHERRY_READY_H
#define WHERRY_READY_H

#include <stdint.h>

#include <wherry/base.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wherry_transport;

/** A state that is ready. Opaque. */
typedef struct wherry_ready wherry_ready;

/** Bits of wherry_ready_options.flags. */
enum {
    WHERRY_READY_SEND = 1, /**< To be sent. */
    WHERRY_READY_RECV = 2, /**< To be received into. */
    WHERRY_READY_FLAGS = 3 /**< All of them. */
};

/** What for. Fill it by wherry_ready_options_init, then change what you need. */
typedef struct wherry_ready_options {
    uint32_t struct_size; /**< sizeof(wherry_ready_options). */
    uint32_t flags;       /**< WHERRY_READY_*, at least one. Default: both. */
    int64_t rank;         /**< As wherry_transfer_options.rank. Default -1: the transport's rank in its group. */
} wherry_ready_options;

/** Fills the defaults. */
WHERRY_API void wherry_ready_options_init(wherry_ready_options *options);

/**
 * Makes a state ready. Does not block. Any thread.
 * @param transport  says which rank this is; not kept.
 * @param state      borrowed until the result is destroyed. Until then nothing is added to it or taken out of it, and its tensors stay where they are.
 * @param options    NULL for the defaults.
 * @param ready_p    belongs to the caller: wherry_ready_destroy, when no call uses it any more. It takes about 500 bytes a tensor.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also for a tensor without memory; WHERRY_NO_MEMORY; WHERRY_UNSUPPORTED for a tensor whose memory cannot be read or written here, with its path;
 * to be sent, also WHERRY_LIMIT for a manifest over 254 MiB, 8 bytes a storage included; to be received into, also WHERRY_MISMATCH where tensors overlap themselves in ways that cannot be written, and
 * whatever else wherry_plan_create returns for such a target.
 */
WHERRY_API wherry_status wherry_ready_create(const struct wherry_transport *transport, const wherry_value *state,
                                             const wherry_ready_options *options, wherry_ready **ready_p,
                                             wherry_error *error);

/** Destroys it; the state stays. ready may be NULL. Does not block. Any thread. */
WHERRY_API void wherry_ready_destroy(wherry_ready *ready);

/** The state, borrowed from whoever made it ready. Does not block. Any thread. */
WHERRY_API const wherry_value *wherry_ready_state(const wherry_ready *ready);

#ifdef __cplusplus
}
#endif
#endif
