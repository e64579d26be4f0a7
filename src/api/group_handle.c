#include "api/group_handle.h"

#include <string.h>

#include <wherry/group_ops.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/options.h"
#include "group/callback/callback.h"
#include "group/group_timing.h"
#include "group/hello.h"
#include "group/mailbox.h"
#include "group/sockets/endpoint.h"
#include "group/sockets/sockets.h"

void wherry_group_options_init(wherry_group_options *options) {
    *options = (wherry_group_options){.struct_size = sizeof(*options),
                                      .timeout_ms = WH_GROUP_JOIN_MS,
                                      .heartbeat_ms = WH_GROUP_HEARTBEAT_MS,
                                      .dead_after_ms = WH_GROUP_DEAD_AFTER_MS};
}

wherry_status wh_group_wrap(wh_group *inner, wherry_group **group_p, wherry_error *error) {
    size_t marks = (size_t)inner->size * sizeof(wh_barrier_mark);
    wherry_group *group = wh_alloc_zeroed(1, sizeof(*group) + marks);
    WH_TRY_ALLOC(group, error, "a group");
    group->inner = inner;
    atomic_flag_clear(&group->in_barrier);
    *group_p = group;
    return WHERRY_OK;
}

/** Like wh_group_wrap, but leaves the group on failure. */
static wherry_status wrap_or_leave(wh_group *inner, wherry_group **group_p, wherry_error *error) {
    wherry_status status = wh_group_wrap(inner, group_p, error);
    if (status != WHERRY_OK) {
        wh_group_destroy(inner);
    }
    return status;
}

static wherry_status check_options(const wherry_group_options *options, wherry_error *error) {
    if (options->reserved || options->allow_insecure > 1 || (options->flags & ~(uint32_t)WHERRY_JOIN_FLAGS)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "allow_insecure must be 0 or 1, reserved must be 0, and flags may have only the bits of WHERRY_JOIN_*; "
            "initialize the options with wherry_group_options_init");
    }
    if (options->encrypt > WHERRY_ENCRYPT_ALL || options->reserved2) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "encrypt must be a wherry_encrypt, and reserved2 must be 0");
    }
    bool serves = options->identity;
    bool reads = options->token;
    if (serves + reads + (options->secret != NULL) > 1) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a process is a server with an identity, or a reader with a token, or a member with a secret");
    }
    if ((serves || reads) && options->allow_insecure) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "allow_insecure is not for a server or its readers");
    }
    if (!options->secret != !options->secret_size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a secret without a size, or a size without a secret");
    }
    if (!options->heartbeat_ms || options->dead_after_ms <= options->heartbeat_ms) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "heartbeat_ms is %u and dead_after_ms is %u; heartbeat_ms must be above 0, and dead_after_ms "
                       "must be larger than heartbeat_ms, preferably several times as large",
                       (unsigned)options->heartbeat_ms, (unsigned)options->dead_after_ms);
    }
    return WHERRY_OK;
}

wherry_status wherry_group_join(const char *address, const wherry_group_options *options, wherry_group **group_p,
                                wherry_error *error) {
    wherry_group_options chosen;
    wherry_group_options_init(&chosen);
    if (!address || !group_p || !wh_options_take(&chosen, sizeof(chosen), options)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "address or group_p is NULL, or the options were not initialized with wherry_group_options_init");
    }
    WH_TRY(check_options(&chosen, error));
    wh_deadline deadline = wh_deadline_in_ms(chosen.timeout_ms);
    wh_sockets_options sockets = {.secret = chosen.secret,
                                  .secret_size = chosen.secret_size,
                                  .encrypt = chosen.encrypt,
                                  .tls_certificate = chosen.tls_certificate,
                                  .tls_key = chosen.tls_key,
                                  .tls_ca = chosen.tls_ca,
                                  .tls_name = chosen.tls_name,
                                  .identity = chosen.identity,
                                  .token = chosen.token,
                                  .allow_insecure = chosen.allow_insecure,
                                  .heartbeat_ms = chosen.heartbeat_ms,
                                  .dead_after_ms = chosen.dead_after_ms,
                                  .wait_for = chosen.wait_for,
                                  .dial_only = chosen.flags & WHERRY_JOIN_CLIENT,
                                  .interrupt = chosen.interrupt,
                                  .interrupt_context = chosen.interrupt_context};
    wh_group *inner;
    WH_TRY(wh_sockets_join(address, &sockets, deadline, &inner, error));
    return wrap_or_leave(inner, group_p, error);
}

wherry_status wherry_group_from_ops(const wherry_group_ops *ops, void *context, wherry_group **group_p,
                                    wherry_error *error) {
    if (!group_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group_p is NULL");
    }
    wh_group *inner;
    WH_TRY(wh_callback_create(ops, context, &inner, error));
    wherry_status status = wh_group_wrap(inner, group_p, error);
    if (status != WHERRY_OK) {
        wh_callback_abandon(inner);
    }
    return status;
}

void wherry_group_leave(wherry_group *group) {
    if (group) {
        wh_group_destroy(group->inner);
        wh_free(group);
    }
}

wherry_status wherry_group_meeting(const wherry_group *group, char text[WHERRY_GROUP_MEETING_MAX],
                                   wherry_error *error) {
    if (!group || !text) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group or text is NULL");
    }
    char found[WHERRY_GROUP_MEETING_MAX];
    WH_TRY(wh_group_meeting(group->inner, found, sizeof(found), error));
    memcpy(text, found, strlen(found) + 1);
    return WHERRY_OK;
}

wherry_status wherry_group_token(const wherry_group *group, char text[WHERRY_GROUP_TOKEN_MAX], wherry_error *error) {
    if (!group || !text) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group or text is NULL");
    }
    const wh_group *inner = group->inner;
    return inner->ops->token ? inner->ops->token(inner, text, error)
                             : wh_fail(error, WHERRY_UNSUPPORTED, "a %s group has no servers", inner->ops->name);
}

wherry_status wherry_group_reload(wherry_group *group, wherry_error *error) {
    if (!group) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group is NULL");
    }
    wh_group *inner = group->inner;
    return inner->ops->reload ? inner->ops->reload(inner, error)
                              : wh_fail(error, WHERRY_UNSUPPORTED, "a %s group has no secret", inner->ops->name);
}

wherry_status wherry_group_describe(wherry_group *group, int32_t rank, wherry_group_link *link_p, wherry_error *error) {
    if (!group || !link_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group or link_p is NULL");
    }
    wh_group *inner = group->inner;
    WH_TRY(wh_group_check_rank(inner, rank, error));
    return inner->ops->describe
               ? inner->ops->describe(inner, rank, link_p, error)
               : wh_fail(error, WHERRY_UNSUPPORTED, "a %s group does not know its connections", inner->ops->name);
}

uint64_t wherry_group_clean(const char *folder, bool remove) {
    return folder ? wh_leftovers_clean(folder, remove) : 0;
}

int32_t wherry_group_rank(const wherry_group *group) {
    return group->inner->rank;
}

int32_t wherry_group_size(const wherry_group *group) {
    return group->inner->size;
}

bool wherry_group_alive(const wherry_group *group, int32_t rank) {
    const wh_group *inner = group->inner;
    return rank >= 0 && rank < inner->size && wh_mailbox_incarnation(inner->mailbox, rank) != 0;
}

wherry_status wherry_group_send(wherry_group *group, int32_t rank, uint32_t tag, const void *bytes, size_t size,
                                uint32_t timeout_ms, wherry_error *error) {
    if (!group || size > WHERRY_GROUP_MESSAGE_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "group is NULL, or the message of %zu bytes is longer than %d; send it in parts, or as a state",
                       size, WHERRY_GROUP_MESSAGE_MAX);
    }
    WH_TRY(wh_group_permit(group->inner, error));
    return wh_group_send(group->inner, rank, WH_TAG_PROGRAM | tag, bytes, size, wh_deadline_in_ms(timeout_ms), error);
}

wherry_status wherry_group_receive(wherry_group *group, int32_t rank, uint32_t tag, uint32_t timeout_ms, void **bytes_p,
                                   size_t *size_p, int32_t *rank_p, wherry_error *error) {
    if (!group || !bytes_p || !size_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "group, bytes_p or size_p is NULL");
    }
    wh_group *inner = group->inner;
    WH_TRY(wh_group_permit(inner, error));
    if (rank >= 0 && rank < inner->size && rank != inner->rank) {
        wh_group_watch(inner, rank);
    }
    wh_message message;
    WH_TRY(wh_group_receive(inner, rank, WH_TAG_PROGRAM | tag, wh_deadline_in_ms(timeout_ms), &message, error));
    *bytes_p = message.bytes;
    *size_p = message.size;
    if (rank_p) {
        *rank_p = message.rank;
    }
    return WHERRY_OK;
}
