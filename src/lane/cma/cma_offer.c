#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/cma/cma.h"

static uint8_t nonce[WH_CMA_NONCE];
static bool nonce_made;

/** A child of fork() has the nonce of its parent at the same address: a reader must not find it there. */
static void forget_nonce(void) {
    memset(nonce, 0, sizeof(nonce));
    nonce_made = false;
}

static wh_fork_lock nonce_lock = WH_FORK_LOCK(.in_child = forget_nonce);

wherry_status wh_cma_nonce(const uint8_t **nonce_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    wh_fork_lock_take(&nonce_lock);
    if (!nonce_made && getrandom(nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
        status = wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot make a nonce");
    } else {
        nonce_made = true;
        *nonce_p = nonce;
    }
    wh_fork_lock_give(&nonce_lock);
    return status;
}

void wh_cma_append_request(wh_string *string, const wh_identity *identity) {
    wh_append_number(string, WH_CMA_VERSION, 1);
    wh_identity_append(string, identity);
}

void wh_cma_append_offer(wh_string *string, const wh_cma_offer *offer) {
    wh_cma_append_request(string, &offer->identity);
    wh_append_number(string, offer->address, 8);
    wh_string_append(string, (const char *)offer->nonce, sizeof(offer->nonce));
}

/** What offers and requests begin with, in bytes of which there are `wanted`. */
static wherry_status parse_identity(const uint8_t *bytes, size_t size, size_t wanted, wh_identity *identity_p,
                                    wherry_error *error) {
    if (size > 0 && bytes[0] != WH_CMA_VERSION) {
        return wh_fail(error, WHERRY_BAD_VERSION, "cma: the other side speaks version %u of this lane, this one %d",
                       bytes[0], WH_CMA_VERSION);
    }
    if (size != wanted) {
        return wh_fail(error, WHERRY_MALFORMED, "cma: what the other side sent has %zu bytes, not %zu", size, wanted);
    }
    wh_cursor cursor = wh_cursor_over(bytes + 1, size - 1);
    wh_identity_take(&cursor, identity_p);
    return cursor.failed ? wh_fail(error, WHERRY_MALFORMED, "cma: the other side sent a process number that is none")
                         : WHERRY_OK;
}

wherry_status wh_cma_parse_offer(const void *bytes, size_t size, wh_cma_offer *offer_p, wherry_error *error) {
    wherry_status status = parse_identity(bytes, size, WH_CMA_OFFER_BYTES, &offer_p->identity, error);
    if (status == WHERRY_OK) {
        const uint8_t *behind = (const uint8_t *)bytes + WH_CMA_REQUEST_BYTES;
        offer_p->address = wh_load_be64(behind);
        memcpy(offer_p->nonce, behind + 8, WH_CMA_NONCE);
    }
    return status;
}

wherry_status wh_cma_parse_request(const void *bytes, size_t size, wh_identity *identity_p, wherry_error *error) {
    return parse_identity(bytes, size, WH_CMA_REQUEST_BYTES, identity_p, error);
}
