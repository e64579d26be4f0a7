/* The lane `stream`: what both sides agree on before frames travel. */
#include <poll.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/lanes.h"
#include "lane/stream/stream_dial.h"
#include "lane/stream/stream_frame.h"

/*
 * An offer is two bytes: the version, and over how many channels the source would write; 0: its group has none. A request is the kind of carrier, then the
 * number of channels (u8) or the tag of the messages (u64, big endian).
 */
enum {
    VERSION = 1,
    OFFER_BYTES = 2,
    BY_CHANNELS = 1,
    BY_MESSAGES = 2,
    CHANNELS_BYTES = 2,
    MESSAGES_BYTES = 9,
    CHANNELS_MAX = WH_STREAM_CHANNELS_MAX,
};

typedef struct stream_end {
    wh_lane_end base;
    wh_stream_worker workers[];
} stream_end;

static void stream_close(wh_lane_end *end) {
    stream_end *own = (void *)end;
    for (uint32_t i = 0; own && i < own->base.workers; i++) {
        wh_stream_worker_destroy(own->workers + i);
    }
    wh_free(own);
}

/** An end whose pipes are to be filled in. */
static stream_end *new_end(uint32_t workers, wherry_error *error) {
    stream_end *own = wh_alloc_zeroed(1, sizeof(*own) + workers * sizeof(*own->workers));
    if (!own) {
        wh_fail_memory(error, "a lane");
        return NULL;
    }
    own->base.workers = workers;
    return own;
}

/** An end whose pipes lack nothing but their channels. */
static stream_end *new_channels_end(const wh_lane_site *site, uint32_t workers, wherry_error *error) {
    stream_end *own = new_end(workers, error);
    for (uint32_t i = 0; own && i < workers; i++) {
        own->workers[i].pipe = wh_pipe_over_channel(site);
        if (!own->workers[i].pipe) {
            stream_close(&own->base);
            wh_fail_memory(error, "a channel");
            return NULL;
        }
    }
    return own;
}

static uint8_t channels_of(const wh_lane_site *site) {
    return site->group->ops->connect ? (uint8_t)wh_min(site->threads, CHANNELS_MAX) : 0;
}

static wherry_status stream_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    uint8_t bytes[OFFER_BYTES] = {VERSION, channels_of(site)};
    wh_string_append(offer, (const char *)bytes, sizeof(bytes));
    return offer->failed ? wh_fail_memory(error, "the offer of a lane") : WHERRY_OK;
}

/** Opens up to `wanted` channels, and leaves out the workers that would have had the others. */
static wherry_status open_channels(const wh_lane_site *site, stream_end *own, uint32_t wanted, wherry_error *error) {
    int channels[CHANNELS_MAX];
    uint32_t opened = 0;
    wherry_status status = wh_stream_dial(site, wanted, channels, &opened, error);
    for (uint32_t i = 0; i < opened; i++) {
        wh_pipe_attach(own->workers[i].pipe, channels[i]);
    }
    for (uint32_t i = opened; i < wanted; i++) {
        wh_stream_worker_destroy(own->workers + i);
    }
    own->base.workers = opened;
    return status;
}

static wherry_status probe_channels(const wh_lane_site *site, uint32_t wanted, wh_string *request, stream_end **own_p,
                                    wherry_error *error) {
    stream_end *own = new_channels_end(site, wanted, error);
    if (!own) {
        return WHERRY_NO_MEMORY;
    }
    wherry_status status = open_channels(site, own, wanted, error);
    if (status != WHERRY_OK) {
        stream_close(&own->base);
        return status;
    }
    uint8_t bytes[CHANNELS_BYTES] = {BY_CHANNELS, (uint8_t)own->base.workers};
    wh_string_append(request, (const char *)bytes, sizeof(bytes));
    *own_p = own;
    return WHERRY_OK;
}

static wherry_status probe_messages(const wh_lane_site *site, wh_string *request, stream_end **own_p,
                                    wherry_error *error) {
    uint64_t tag = wh_random_tag();
    if (!tag) {
        return wh_fail(error, WHERRY_SYSTEM, "the system gives no random numbers");
    }
    stream_end *own = new_end(1, error);
    if (!own) {
        return WHERRY_NO_MEMORY;
    }
    wherry_status status = wh_pipe_over_messages(site, tag, false, &own->workers->pipe, error);
    if (status != WHERRY_OK) {
        stream_close(&own->base);
        return status;
    }
    uint8_t bytes[MESSAGES_BYTES] = {BY_MESSAGES};
    wh_store_be64(bytes + 1, tag);
    wh_string_append(request, (const char *)bytes, sizeof(bytes));
    *own_p = own;
    return WHERRY_OK;
}

static wherry_status stream_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                                  bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    const uint8_t *bytes = offer;
    *assist_p = false;
    if (size != OFFER_BYTES || bytes[0] != VERSION) {
        return wh_fail(error, WHERRY_MALFORMED, "the offer of rank %d for the lane stream cannot be read",
                       (int)site->peer);
    }
    uint32_t channels = (uint32_t)wh_min(bytes[1], channels_of(site));
    stream_end *own = NULL;
    wherry_status status = channels ? probe_channels(site, channels, request, &own, error) : WHERRY_UNSUPPORTED;
    if (status == WHERRY_UNSUPPORTED) {
        status = probe_messages(site, request, &own, error);
    }
    if (status == WHERRY_OK && request->failed) {
        stream_close(&own->base);
        return wh_fail_memory(error, "the request of a lane");
    }
    if (status == WHERRY_OK) {
        *end_p = &own->base;
    }
    return status;
}

/** Whether the receiver still has its end of a channel: one that it could not open in time it has closed. */
static bool is_open(int channel) {
    struct pollfd at = {channel, POLLRDHUP, 0};
    return poll(&at, 1, 0) == 0;
}

/** Brings the channels that are open to the front. @return how many. */
static size_t find_open(const wh_lane_site *site) {
    size_t open = 0;
    for (size_t i = 0; i < site->channel_count; i++) {
        int channel = site->channels[i];
        if (is_open(channel)) {
            site->channels[i] = site->channels[open];
            site->channels[open++] = channel;
        }
    }
    return open;
}

/** Takes over the first channels, when nothing can go wrong any more; others stay the caller's. */
static wherry_status accept_channels(const wh_lane_site *site, uint32_t wanted, bool *ready_p, wh_lane_end **end_p,
                                     wherry_error *error) {
    if (site->channel_count < wanted || find_open(site) < wanted) {
        *ready_p = false;
        return WHERRY_OK;
    }
    stream_end *own = new_channels_end(site, wanted, error);
    if (!own) {
        return WHERRY_NO_MEMORY;
    }
    for (uint32_t i = 0; i < wanted; i++) {
        wh_pipe_attach(own->workers[i].pipe, site->channels[i]);
        site->channels[i] = -1;
    }
    *ready_p = true;
    *end_p = &own->base;
    return WHERRY_OK;
}

static wherry_status accept_messages(const wh_lane_site *site, uint64_t tag, bool *ready_p, wh_lane_end **end_p,
                                     wherry_error *error) {
    stream_end *own = new_end(1, error);
    if (!own) {
        return WHERRY_NO_MEMORY;
    }
    wherry_status status = wh_pipe_over_messages(site, tag, true, &own->workers->pipe, error);
    if (status != WHERRY_OK) {
        stream_close(&own->base);
        return status;
    }
    *ready_p = true;
    *end_p = &own->base;
    return WHERRY_OK;
}

static wherry_status stream_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                   wh_lane_end **end_p, wherry_error *error) {
    const uint8_t *bytes = request;
    if (size == CHANNELS_BYTES && bytes[0] == BY_CHANNELS && bytes[1] >= 1 && bytes[1] <= CHANNELS_MAX) {
        return accept_channels(site, bytes[1], ready_p, end_p, error);
    }
    if (size == MESSAGES_BYTES && bytes[0] == BY_MESSAGES && wh_load_be64(bytes + 1) & WH_TAG_CONVERSATION) {
        return accept_messages(site, wh_load_be64(bytes + 1), ready_p, end_p, error);
    }
    return wh_fail(error, WHERRY_MALFORMED, "the request of rank %d for the lane stream cannot be read",
                   (int)site->peer);
}

static wherry_status stream_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    stream_end *own = (void *)end;
    return wh_stream_pull(own->workers + worker, sink, error);
}

static wherry_status stream_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    stream_end *own = (void *)end;
    return wh_stream_push(own->workers + worker, feed, error);
}

/* Whether its workers use messages depends on the group: a group that has channels may be used by several threads. */
const wh_lane_ops wh_lane_stream = {
    .name = "stream",
    .traits = WH_LANE_NETWORK | WH_LANE_DIGESTS | WH_LANE_MESSAGES | WH_LANE_STAGES,
    .offer = stream_offer,
    .probe = stream_probe,
    .accept = stream_accept,
    .pull = stream_pull,
    .push = stream_push,
    .close = stream_close,
};
