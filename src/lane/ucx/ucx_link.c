/* Links over UCX, and a cache of them for later transfers. The invariants are in ucx_link.h. */
#include "lane/ucx/ucx_link.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/process.h"
#include "lane/lane_timing.h"

/** UCX's number for the lane's active messages. */
enum { MESSAGE_ID = 1 };

enum {
    /**
     * A thread sleeps after this many calls without work. Waking it costs more than a few calls.
     */
    IDLE_CALLS = 8,
    QUIET_CALLS = 64, /**< After this many calls without work, UCX counts as idle. */
    KEPT_MAX = 8,     /**< Maximum number of cached links: two peers with four workers each. */
};

/** Size of a long TCP segment, in UCX's notation. */
static const char LONG_SEGMENT[] = "512K";

/**
 * How often UCX checks that a silent peer is alive. With UCX's default of 20 s, a source would
 * notice a dead peer too late.
 */
static const char KEEPALIVE[] = "1s";

/* ---- creating and destroying ---- */

static wherry_status fail_ucx(const wh_ucx_library *ucx, ucs_status_t status, const char *what, wherry_error *error) {
    return wh_fail(error, status == UCS_ERR_NO_MEMORY ? WHERRY_NO_MEMORY : WHERRY_UNSUPPORTED,
                   "UCX cannot %s: %s; check UCX_TLS and UCX_NET_DEVICES against the output of ucx_info -d", what,
                   ucx->ucs_status_string(status));
}

static void set_tcp(const wh_ucx_library *ucx, ucp_config_t *config, const char *name, const char *value) {
    char full[64];
    snprintf(full, sizeof(full), "TCP_%s", name);
    (void)ucx->ucp_config_modify(config, ucx->minor >= WH_UCX_FULL_NAMES_MINOR ? full : name, value);
}

bool wh_ucx_may_use_long_segments(void) {
    return !getenv("UCX_TCP_RX_SEG_SIZE") && !getenv("UCX_TCP_TX_SEG_SIZE");
}

/**
 * Changes settings of this context only. Variables that the user has set in the environment take
 * precedence: if the user has set a segment size, this side does not agree to long segments. With
 * UCX's default segment size of 64 KiB, TCP reaches only 60 % of the speed, because each segment
 * costs a system call and a copy.
 */
static void configure(const wh_ucx_link *link, ucp_config_t *config) {
    if (link->long_segments) {
        set_tcp(link->ucx, config, "RX_SEG_SIZE", LONG_SEGMENT);
    }
    /* Otherwise connect() to a host that cannot be reached blocks for minutes. */
    if (!getenv("UCX_TCP_CONN_NB")) {
        set_tcp(link->ucx, config, "CONN_NB", "y");
    }
    if (!getenv("UCX_KEEPALIVE_INTERVAL")) {
        (void)link->ucx->ucp_config_modify(config, "KEEPALIVE_INTERVAL", KEEPALIVE);
    }
}

static wherry_status create_context(wh_ucx_link *link, wherry_error *error) {
    const wh_ucx_library *ucx = link->ucx;
    ucp_config_t *config;
    ucs_status_t status = ucx->ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return fail_ucx(ucx, status, "read its settings", error);
    }
    configure(link, config);
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "wherry",
    };
    status = ucx->ucp_init_version(WH_UCX_MAJOR, WH_UCX_MINOR, &params, config, &link->context);
    ucx->ucp_config_release(config);
    return status == UCS_OK ? WHERRY_OK : fail_ucx(ucx, status, "start", error);
}

static ucs_status_t take_message(void *argument, const void *header, size_t header_size, void *data, size_t size,
                                 const ucp_am_recv_param_t *param) {
    wh_ucx_link *link = argument;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    bool kept = link->message && link->message(link->message_context, header, header_size, data, size, rendezvous);
    return kept ? UCS_INPROGRESS : UCS_OK;
}

static wherry_status create_worker(wh_ucx_link *link, wherry_error *error) {
    const wh_ucx_library *ucx = link->ucx;
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = take_message,
        .arg = link,
    };
    ucs_status_t status = ucx->ucp_worker_create(link->context, &params, &link->worker);
    if (status != UCS_OK || (status = ucx->ucp_worker_set_am_recv_handler(link->worker, &handler)) != UCS_OK ||
        (status = ucx->ucp_worker_get_efd(link->worker, &link->wake)) != UCS_OK ||
        (status = ucx->ucp_worker_get_address(link->worker, &link->address, &link->address_size)) != UCS_OK) {
        return fail_ucx(ucx, status, "create a worker", error);
    }
    link->hello = wh_alloc(WH_UCX_ID_BYTES + link->address_size);
    WH_TRY_ALLOC(link->hello, error, "a lane");
    memcpy(link->hello, link->id, WH_UCX_ID_BYTES);
    memcpy(link->hello + WH_UCX_ID_BYTES, link->address, link->address_size);
    return WHERRY_OK;
}

static void destroy_link(wh_ucx_link *link) {
    wh_ucx_enter();
    wh_ucx_link_disconnect(link);
    if (link->pending) {
        /* Destroying the worker now would fail an assertion in UCX and end the process. */
        wh_log(WHERRY_LOG_WARN, "ucx: %u operations did not end; their memory is leaked", (unsigned)link->pending);
        wh_ucx_leave();
        return;
    }
    wh_free(link->hello);
    wh_free(link->scratch);
    if (link->address) {
        link->ucx->ucp_worker_release_address(link->worker, link->address);
    }
    if (link->worker) {
        link->ucx->ucp_worker_destroy(link->worker);
    }
    if (link->context) {
        link->ucx->ucp_cleanup(link->context);
    }
    wh_ucx_leave();
    wh_free(link);
}

/** Blocks all signals while UCX starts a thread, because the thread inherits the signal mask. */
static wherry_status create_link(const wh_ucx_library *ucx, bool long_segments, wh_ucx_link **link_p,
                                 wherry_error *error) {
    wh_ucx_link *link = wh_alloc_zeroed(1, sizeof(*link));
    WH_TRY_ALLOC(link, error, "a lane");
    wherry_status status = wh_random_fill(link->id, sizeof(link->id), error);
    if (status != WHERRY_OK) {
        wh_free(link);
        return status;
    }
    sigset_t all;
    sigset_t before;
    link->ucx = ucx;
    link->long_segments = long_segments;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    wh_ucx_enter();
    status = create_context(link, error);
    WH_THEN(status, create_worker(link, error));
    wh_ucx_leave();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != WHERRY_OK) {
        destroy_link(link);
        return status;
    }
    *link_p = link;
    return WHERRY_OK;
}

/* ---- operations ---- */

static void end_operation(wh_ucx_operation *operation, void *request, ucs_status_t status) {
    wh_ucx_link *link = operation->link;
    operation->done = true;
    operation->status = status;
    link->pending--;
    link->ucx->ucp_request_free(request);
}

static void on_sent(void *request, ucs_status_t status, void *argument) {
    end_operation(argument, request, status);
}

static void on_received(void *request, ucs_status_t status, size_t length, void *argument) {
    (void)length;
    end_operation(argument, request, status);
}

static void begin_operation(wh_ucx_link *link, wh_ucx_operation *operation) {
    *operation = (wh_ucx_operation){.link = link};
    link->pending++;
    link->idle = 0;
}

/**
 * Call this after an operation was started. Completes the operation if it is already done.
 * @param answer  the result of the UCX function that has started the operation: a status if the
 *                operation is already done, otherwise a request.
 */
static void note_started(wh_ucx_operation *operation, ucs_status_ptr_t answer) {
    if (!UCS_PTR_IS_PTR(answer)) {
        operation->done = true;
        operation->status = UCS_PTR_STATUS(answer);
        operation->link->pending--;
    }
}

static ucp_request_param_t send_param(wh_ucx_operation *operation, uint32_t flags) {
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb = {.send = on_sent},
        .user_data = operation,
    };
}

void wh_ucx_send(wh_ucx_link *link, wh_ucx_operation *operation, const uint8_t header[WH_UCX_HEADER_BYTES],
                 const void *data, size_t size, bool rendezvous) {
    begin_operation(link, operation);
    ucp_request_param_t param = send_param(operation, rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
    note_started(operation,
                 link->ucx->ucp_am_send_nbx(link->peer, MESSAGE_ID, header, WH_UCX_HEADER_BYTES, data, size, &param));
}

void wh_ucx_receive(wh_ucx_link *link, wh_ucx_operation *operation, void *data, void *to, size_t size) {
    begin_operation(link, operation);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.recv_am = on_received},
        .user_data = operation,
    };
    note_started(operation, link->ucx->ucp_am_recv_data_nbx(link->worker, data, to, size, &param));
}

void wh_ucx_link_greet(wh_ucx_link *link, wh_ucx_kind kind, const uint8_t token[WH_UCX_TOKEN_BYTES]) {
    bool hello = kind == WH_UCX_HELLO;
    wh_ucx_header_write(link->greeting_header, token, &(wh_ucx_header){.kind = kind});
    wh_ucx_send(link, &link->greeting, link->greeting_header, hello ? link->hello : NULL,
                hello ? WH_UCX_ID_BYTES + link->address_size : 0, false);
}

void wh_ucx_link_progress(wh_ucx_link *link, const wh_stop *stop) {
    const wh_ucx_library *ucx = link->ucx;
    if (ucx->ucp_worker_progress(link->worker)) {
        link->idle = 0;
    } else if (++link->idle > IDLE_CALLS && ucx->ucp_worker_arm(link->worker) == UCS_OK) {
        wh_stop_wait_fd(stop, link->wake, POLLIN, wh_deadline_in_ms(WH_UCX_WAIT_MS));
    }
}

/* ---- connections ---- */

static void on_lost(void *argument, ucp_ep_h peer, ucs_status_t status) {
    wh_ucx_link *link = argument;
    if (peer == link->peer) {
        link->lost = status == UCS_OK ? UCS_ERR_CONNECTION_RESET : status;
    }
}

wherry_status wh_ucx_link_connect(wh_ucx_link *link, const uint8_t id[WH_UCX_ID_BYTES], const void *address,
                                  int32_t rank, wherry_error *error) {
    const wh_ucx_library *ucx = link->ucx;
    if (link->peer && memcmp(link->peer_id, id, WH_UCX_ID_BYTES) == 0) {
        return WHERRY_OK;
    }
    wh_ucx_link_disconnect(link);
    if (link->pending) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "UCX did not end the previous connection of this link in time");
    }
    ucp_ep_params_t params = {
        .field_mask =
            UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_lost, .arg = link},
    };
    ucs_status_t status = ucx->ucp_ep_create(link->worker, &params, &link->peer);
    if (status != UCS_OK) {
        link->peer = NULL;
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "UCX has no transport to rank %d: %s; check UCX_TLS and UCX_NET_DEVICES on both sides",
                       (int)rank, ucx->ucs_status_string(status));
    }
    memcpy(link->peer_id, id, WH_UCX_ID_BYTES);
    link->transports[0] = '\0';
    return WHERRY_OK;
}

/** Lets UCX work until no operation is pending or the time has passed. */
static void drain(wh_ucx_link *link, int milliseconds) {
    const wh_ucx_library *ucx = link->ucx;
    wh_deadline end = wh_deadline_in_ms(milliseconds);
    while (link->pending && !wh_deadline_passed(end)) {
        if (!ucx->ucp_worker_progress(link->worker) && ucx->ucp_worker_arm(link->worker) == UCS_OK) {
            poll(&(struct pollfd){link->wake, POLLIN, 0}, 1, 1);
        }
    }
}

/** Lets UCX work until it is idle, the peer is lost, or `end` has passed. */
static void progress_until_quiet(wh_ucx_link *link, wh_deadline end) {
    for (int quiet = 0; quiet < QUIET_CALLS && link->lost == UCS_OK && !wh_deadline_passed(end);) {
        quiet = link->ucx->ucp_worker_progress(link->worker) ? 0 : quiet + 1;
    }
}

/**
 * When a connection is closed, UCX reports its requests as done at once. But their copies continue,
 * and UCX must not be destroyed before the copies end. So this function first waits up to
 * WH_UCX_DRAIN_MS for pending operations, which is enough if the peer is alive. If operations were
 * pending or the peer is lost, it also lets UCX work after closing, until UCX is idle.
 */
void wh_ucx_link_disconnect(wh_ucx_link *link) {
    const wh_ucx_library *ucx = link->ucx;
    if (!link->peer) {
        return;
    }
    wh_ucx_enter();
    bool unfinished = link->lost != UCS_OK || link->pending;
    if (link->lost == UCS_OK) {
        drain(link, WH_UCX_DRAIN_MS);
    }
    begin_operation(link, &link->closing);
    ucp_request_param_t param = send_param(&link->closing, UCP_EP_CLOSE_FLAG_FORCE);
    note_started(&link->closing, ucx->ucp_ep_close_nbx(link->peer, &param));
    drain(link, WH_UCX_CLOSE_MS);
    link->peer = NULL;
    link->lost = UCS_OK;
    if (unfinished) {
        progress_until_quiet(link, wh_deadline_in_ms(WH_UCX_CLOSE_MS));
    }
    wh_ucx_leave();
}

/**
 * Parses a line of ucp_ep_print_info, such as "lane[0]:  2:tcp/lo.0 md[1] ...". Adds its transport,
 * here "tcp/lo", to the text if it is not there yet.
 */
static void add_transport(const char *line, char *text, size_t size) {
    const char *at = strstr(line, "lane[");
    at = at ? strstr(at, "]:") : NULL;
    if (!at) {
        return;
    }
    at += 2 + strspn(at + 2, " 0123456789");
    at += *at == ':';
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, " \t"), at);
    char *dot = strrchr(name, '.');
    if (dot) {
        *dot = '\0';
    }
    size_t used = strlen(text);
    if (!strstr(text, name)) {
        snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
    }
}

const char *wh_ucx_link_transports(wh_ucx_link *link) {
    char *text = NULL;
    size_t length;
    FILE *stream = link->peer && !link->transports[0] ? open_memstream(&text, &length) : NULL;
    if (!stream) {
        return link->transports;
    }
    link->ucx->ucp_ep_print_info(link->peer, stream);
    fclose(stream);
    char *rest = text;
    for (char *line = text ? strsep(&rest, "\n") : NULL; line; line = strsep(&rest, "\n")) {
        add_transport(line, link->transports, sizeof(link->transports));
    }
    free(text);
    return link->transports;
}

/* ---- the cache ---- */

static wh_ucx_link *kept; /**< The cached links, most recently used first. */
static uint32_t kept_count;
static wh_ucx_link *used; /**< The links in use. */
static uint32_t used_count;
static bool foreign;  /**< The program had loaded UCX before Wherry did. */
static bool exits;    /**< at_exit is registered. */
static bool unusable; /**< This process was forked from one that used UCX, so it cannot use UCX. */

/** Removes the link *at from the cache and returns it. */
static wh_ucx_link *remove_kept(wh_ucx_link **at) {
    wh_ucx_link *link = *at;
    *at = link->next;
    kept_count--;
    return link;
}

/** Destroys all cached links, unless a link is in use. Called before a fork and at exit. */
static void destroy_kept(void) {
    while (kept && !used_count && !unusable) {
        destroy_link(remove_kept(&kept));
    }
}

/** Does not destroy the links of the parent, because UCX's threads do not exist in the child. */
static void after_fork_in_child(void) {
    unusable = unusable || used_count || foreign;
    used = NULL;
    used_count = 0;
}

static wh_fork_lock lock = WH_FORK_LOCK(.before = destroy_kept, .in_child = after_fork_in_child);

static void at_exit(void) {
    wh_fork_lock_take(&lock);
    destroy_kept();
    wh_fork_lock_give(&lock);
}

/** Takes a matching link from the cache. @return NULL if there is none. */
static wh_ucx_link *find_kept(const uint8_t *peer_id, bool long_segments) {
    for (wh_ucx_link **at = &kept; *at; at = &(*at)->next) {
        const wh_ucx_link *link = *at;
        bool fits =
            peer_id ? link->of_source && memcmp(link->peer_id, peer_id, WH_UCX_ID_BYTES) == 0 : !link->of_source;
        if (fits && !link->stale && link->long_segments == long_segments) {
            return remove_kept(at);
        }
    }
    return NULL;
}

/**
 * Notes that a link is in use. A source's link is about to be the one that the receiver's link is
 * connected to. An older one, which its transfer may still be closing, must not be used again.
 */
static void note_used(wh_ucx_link *link) {
    wh_ucx_link *lists[] = {kept, used};
    for (size_t i = 0; i < 2 && link->of_source; i++) {
        for (wh_ucx_link *one = lists[i]; one; one = one->next) {
            one->stale = one->stale || (one->of_source && memcmp(one->peer_id, link->peer_id, WH_UCX_ID_BYTES) == 0);
        }
    }
    link->next = used;
    used = link;
}

static void note_unused(const wh_ucx_link *link) {
    wh_ucx_link **at = &used;
    while (*at && *at != link) {
        at = &(*at)->next;
    }
    if (*at) { /* else, the link is that of a parent */
        *at = link->next;
    }
}

static wherry_status load_and_create(bool long_segments, wh_ucx_link **link_p, wherry_error *error) {
    const wh_ucx_library *ucx = wh_ucx_load(error);
    if (!ucx) {
        return WHERRY_UNSUPPORTED;
    }
    wh_fork_lock_take(&lock);
    foreign = ucx->foreign;
    bool first = !exits;
    exits = true;
    wh_fork_lock_give(&lock);
    if (first) {
        atexit(at_exit); /* Registered after UCX's own handlers, so that it runs before them. */
    }
    return create_link(ucx, long_segments, link_p, error);
}

static void end_use(void) {
    wh_fork_lock_take(&lock);
    used_count--;
    wh_fork_lock_give(&lock);
}

wherry_status wh_ucx_link_take(const uint8_t *peer_id, bool long_segments, wh_ucx_link **link_p, wherry_error *error) {
    wh_ucx_link *link;
    wh_fork_lock_take(&lock);
    if (unusable) {
        wh_fork_lock_give(&lock);
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "UCX was in use when this process was forked, and UCX does not survive a fork; "
                       "start the process with exec or with the start method \"spawn\"");
    }
    used_count++;
    while ((link = find_kept(peer_id, long_segments))) {
        wh_fork_lock_give(&lock);
        wh_ucx_enter();
        /* UCX may detect now that the peer is lost. */
        progress_until_quiet(link, wh_deadline_never());
        wh_ucx_leave();
        if (link->lost == UCS_OK) {
            break;
        }
        destroy_link(link);
        wh_fork_lock_take(&lock);
    }
    wherry_status status = WHERRY_OK;
    if (!link) {
        wh_fork_lock_give(&lock);
        wh_point("ucx creates a link");
        status = load_and_create(long_segments, &link, error);
    }
    if (status != WHERRY_OK) {
        end_use();
        return status;
    }
    link->of_source = peer_id != NULL;
    link->clean = false;
    if (peer_id) {
        memcpy(link->peer_id, peer_id, WH_UCX_ID_BYTES);
    }
    wh_fork_lock_take(&lock);
    note_used(link);
    wh_fork_lock_give(&lock);
    *link_p = link;
    return WHERRY_OK;
}

void wh_ucx_link_give(wh_ucx_link *link) {
    if (!link) {
        return;
    }
    link->message = NULL;
    wh_fork_lock_take(&lock);
    note_unused(link);
    if (link->clean && !link->stale && !link->pending && link->lost == UCS_OK && link->peer) {
        link->next = kept;
        kept = link;
        kept_count++;
        link = NULL;
        if (kept_count > KEPT_MAX) {
            wh_ucx_link **oldest = &kept;
            while ((*oldest)->next) {
                oldest = &(*oldest)->next;
            }
            link = remove_kept(oldest);
        }
    }
    wh_fork_lock_give(&lock);
    if (link) {
        destroy_link(link);
    }
    end_use();
}
