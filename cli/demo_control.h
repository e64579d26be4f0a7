/**
 * @file demo_control.h  What the demo's conductor and its ranks tell each other, over a pair of sockets a rank.
 *
 * The ranks do not need it to heal: who asks whom for the state, and when, is between them and the group. It is for pace, for
 * the screen and for the check.
 */
#ifndef WH_CLI_DEMO_CONTROL_H
#define WH_CLI_DEMO_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "demo_model.h"

typedef enum wh_demo_kind {
    /* From the conductor: */
    WH_DEMO_LIMIT = 1, /**< Train up to `step`, and wait there. */
    WH_DEMO_FINISH,    /**< Tell the digest of your memory. */
    WH_DEMO_QUIT,      /**< Leave the group and end. */
    /* From a rank: */
    WH_DEMO_JOINED,  /**< It is in the group. */
    WH_DEMO_HEALED,  /**< It has received `step` from `peer`; `seconds`, `bytes`, `verified`, and the lane in `text`. */
    WH_DEMO_LENT,    /**< It has sent its state to `peer`, and was held up for `seconds`. */
    WH_DEMO_STEPPED, /**< It has done `step`, with `digest`. */
    WH_DEMO_DIGEST,  /**< The answer to WH_DEMO_FINISH: `digest`. */
    WH_DEMO_LOG,     /**< The library told `text`. */
    WH_DEMO_FAILED,  /**< It cannot go on, for the reason in `text`. */
} wh_demo_kind;

enum { WH_DEMO_TEXT_MAX = 900 };

/** One message: one packet. Which members count is said above. */
typedef struct wh_demo_message {
    wh_demo_kind kind;
    int32_t peer;
    int64_t step;
    uint64_t bytes;
    double seconds;
    uint32_t verified;
    wh_demo_digest digest;
    char text[WH_DEMO_TEXT_MAX];
} wh_demo_message;

/** How a message was got. */
typedef enum wh_demo_got {
    WH_DEMO_GOT_ONE,
    WH_DEMO_GOT_NONE, /**< None has come in time. */
    WH_DEMO_GOT_END,  /**< The other side is gone. */
} wh_demo_got;

/** A connected pair, closed on exec. @return false with errno. */
bool wh_demo_control_pair(int ends[2]);

/** Sends. Any thread. Blocks only where hundreds of messages lie unread. @return false where the other side is gone. */
bool wh_demo_control_send(int end, const wh_demo_message *message);

/** Takes the next message; waits for it up to wait_ms. */
wh_demo_got wh_demo_control_receive(int end, int wait_ms, wh_demo_message *message);

#endif
