#include "lane/ucx/ucx_station.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"

/** The number of the lane's messages. Turns in which nothing happens before it waits; how long that is at most. */
enum { MESSAGE_ID = 1, IDLE_TURNS = 8, WAIT_MS = 20 };

/** How long a connection may take to end: what is under way, then the connection itself; and when UCX is taken to have nothing to do. */
enum { DRAIN_MS = 50, END_MS = 500, QUIET_TURNS = 64 };

/** Bytes of one, in UCX's spelling. */
static const char LONG_SEGMENT[] = "512K";

/** How often UCX looks whether a peer that is silent is there. Shared memory does not tell, as a socket does, and after UCX's own 20 s a source would wait long. */
static const char KEEPALIVE[] = "1s";

/* ---- making one ---- */

static wherry_status fail_ucx(const wh_ucx_library *ucx, ucs_status_t status, const char *what, wherry_error *error) {
    return wh_fail(error, status == UCS_ERR_NO_MEMORY ? WHERRY_NO_MEMORY : WHERRY_UNSUPPORTED,
                   "UCX cannot %s: %s; look at UCX_TLS and UCX_NET_DEVICES, and at what ucx_info -d shows", what,
                   ucx->ucs_status_string(status));
}

/** Sets what a transport of UCX goes by. Older versions want the name without that of the transport. The environment is the user's, and stays as it is. */
static void set(const wh_ucx_library *ucx, ucp_config_t *config, const char *transport, const char *name,
                const char *value) {
    char whole[64];
    snprintf(whole, sizeof(whole), "%s_%s", transport, name);
    (void)ucx->ucp_config_modify(config, ucx->minor >= WH_UCX_WHOLE_NAMES_MINOR ? whole : name, value);
}

bool wh_ucx_may_use_long_segments(void) {
    return !getenv("UCX_TCP_RX_SEG_SIZE") && !getenv("UCX_TCP_TX_SEG_SIZE");
}

/**
 * The user's environment wins, except for the segments, on which both sides have agreed. With UCX's own segments of 64 KiB, TCP reaches three fifths of the
 * rate: each one costs a system call and a copy out of a buffer.
 */
static void configure(const wh_ucx_station *station, ucp_config_t *config) {
    if (station->long_segments) {
        set(station->ucx, config, "TCP", "RX_SEG_SIZE", LONG_SEGMENT);
    }
    if (!getenv("UCX_TCP_CONN_NB")) { /* connect() to a host that is cut off would block for minutes */
        set(station->ucx, config, "TCP", "CONN_NB", "y");
    }
    if (!getenv("UCX_KEEPALIVE_INTERVAL")) {
        (void)station->ucx->ucp_config_modify(config, "KEEPALIVE_INTERVAL", KEEPALIVE);
    }
}

static wherry_status create_context(wh_ucx_station *station, wherry_error *error) {
    const wh_ucx_library *ucx = station->ucx;
    ucp_config_t *config;
    ucs_status_t status = ucx->ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return fail_ucx(ucx, status, "read its settings", error);
    }
    configure(station, config);
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "wherry",
    };
    status = ucx->ucp_init_version(WH_UCX_MAJOR, WH_UCX_MINOR, &params, config, &station->context);
    ucx->ucp_config_release(config);
    return status == UCS_OK ? WHERRY_OK : fail_ucx(ucx, status, "start", error);
}

static ucs_status_t take_message(void *argument, const void *header, size_t header_size, void *data, size_t size,
                                 const ucp_am_recv_param_t *param) {
    wh_ucx_station *station = argument;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    bool taken =
        station->message && station->message(station->message_context, header, header_size, data, size, rendezvous);
    return taken ? UCS_INPROGRESS : UCS_OK;
}

static wherry_status create_worker(wh_ucx_station *station, wherry_error *error) {
    const wh_ucx_library *ucx = station->ucx;
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
        .arg = station,
    };
    ucs_status_t status = ucx->ucp_worker_create(station->context, &params, &station->worker);
    if (status == UCS_OK) {
        status = ucx->ucp_worker_set_am_recv_handler(station->worker, &handler);
    }
    if (status == UCS_OK) {
        status = ucx->ucp_worker_get_efd(station->worker, &station->wake);
    }
    if (status == UCS_OK) {
        status = ucx->ucp_worker_get_address(station->worker, &station->address, &station->address_size);
    }
    if (status != UCS_OK) {
        return fail_ucx(ucx, status, "make a worker", error);
    }
    station->card = wh_alloc(WH_UCX_ID_BYTES + station->address_size);
    if (!station->card) {
        return wh_fail_memory(error, "a lane");
    }
    memcpy(station->card, station->id, WH_UCX_ID_BYTES);
    memcpy(station->card + WH_UCX_ID_BYTES, station->address, station->address_size);
    return WHERRY_OK;
}

void wh_ucx_station_destroy(wh_ucx_station *station) {
    wh_ucx_enter();
    wh_ucx_station_disconnect(station);
    if (station->pending) {
        /* UCX would end the process over it. */
        wh_log(WHERRY_LOG_WARN, "ucx: %u operations do not end: what they use stays", (unsigned)station->pending);
        wh_ucx_leave();
        return;
    }
    wh_free(station->card);
    wh_free(station->scratch);
    if (station->address) {
        station->ucx->ucp_worker_release_address(station->worker, station->address);
    }
    if (station->worker) {
        station->ucx->ucp_worker_destroy(station->worker);
    }
    if (station->context) {
        station->ucx->ucp_cleanup(station->context);
    }
    wh_ucx_leave();
    wh_free(station);
}

/** UCX starts a thread of its own, which inherits that all signals are blocked. */
wherry_status wh_ucx_station_create(const wh_ucx_library *ucx, bool long_segments, wh_ucx_station **station_p,
                                    wherry_error *error) {
    wh_ucx_station *station = wh_alloc_zeroed(1, sizeof(*station));
    if (!station) {
        return wh_fail_memory(error, "a lane");
    }
    if (getrandom(station->id, sizeof(station->id), 0) != sizeof(station->id)) {
        wh_free(station);
        return wh_fail(error, WHERRY_SYSTEM, "the system gives no random numbers");
    }
    sigset_t all;
    sigset_t before;
    station->ucx = ucx;
    station->long_segments = long_segments;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    wh_ucx_enter();
    wherry_status status = create_context(station, error);
    if (status == WHERRY_OK) {
        status = create_worker(station, error);
    }
    wh_ucx_leave();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != WHERRY_OK) {
        wh_ucx_station_destroy(station);
        return status;
    }
    *station_p = station;
    return WHERRY_OK;
}

/* ---- talking ---- */

static void note_lost(void *argument, ucp_ep_h peer, ucs_status_t status) {
    wh_ucx_station *station = argument;
    if (peer == station->peer) {
        station->lost = status == UCS_OK ? UCS_ERR_CONNECTION_RESET : status;
    }
}

wherry_status wh_ucx_station_connect(wh_ucx_station *station, const uint8_t id[WH_UCX_ID_BYTES], const void *address,
                                     int32_t rank, wherry_error *error) {
    const wh_ucx_library *ucx = station->ucx;
    if (station->peer && memcmp(station->peer_id, id, WH_UCX_ID_BYTES) == 0) {
        return WHERRY_OK;
    }
    wh_ucx_station_disconnect(station);
    ucp_ep_params_t params = {
        .field_mask =
            UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = note_lost, .arg = station},
    };
    ucs_status_t status = ucx->ucp_ep_create(station->worker, &params, &station->peer);
    if (status != UCS_OK) {
        station->peer = NULL;
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "UCX finds no way to rank %d: %s; look at UCX_TLS and UCX_NET_DEVICES on both sides", (int)rank,
                       ucx->ucs_status_string(status));
    }
    memcpy(station->peer_id, id, WH_UCX_ID_BYTES);
    station->ways[0] = '\0';
    return WHERRY_OK;
}

void wh_ucx_station_greet(wh_ucx_station *station, wh_ucx_kind kind, const uint8_t token[WH_UCX_TOKEN_BYTES]) {
    bool hello = kind == WH_UCX_HELLO;
    wh_ucx_header_write(station->greeting_header, token, &(wh_ucx_header){.kind = kind});
    wh_ucx_send(station, &station->greeting, station->greeting_header, hello ? station->card : NULL,
                hello ? WH_UCX_ID_BYTES + station->address_size : 0, false);
}

bool wh_ucx_station_alive(wh_ucx_station *station) {
    wh_ucx_enter();
    for (int quiet = 0; quiet < QUIET_TURNS && station->lost == UCS_OK;) {
        quiet = station->ucx->ucp_worker_progress(station->worker) ? 0 : quiet + 1;
    }
    wh_ucx_leave();
    return station->lost == UCS_OK;
}

static void note_done(wh_ucx_operation *operation, void *request, ucs_status_t status) {
    wh_ucx_station *station = operation->station;
    operation->done = true;
    operation->status = status;
    station->pending--;
    station->ucx->ucp_request_free(request);
}

static void note_sent(void *request, ucs_status_t status, void *argument) {
    note_done(argument, request, status);
}

static void note_received(void *request, ucs_status_t status, size_t length, void *argument) {
    (void)length;
    note_done(argument, request, status);
}

static void begin(wh_ucx_station *station, wh_ucx_operation *operation) {
    *operation = (wh_ucx_operation){.station = station};
    station->pending++;
    station->idle = 0;
}

/** What a function that was given the operation has answered: it is done, has failed, or will call back. */
static void note_begun(wh_ucx_operation *operation, ucs_status_ptr_t answer) {
    if (!UCS_PTR_IS_PTR(answer)) {
        operation->done = true;
        operation->status = UCS_PTR_STATUS(answer);
        operation->station->pending--;
    }
}

static ucp_request_param_t send_param(wh_ucx_operation *operation, uint32_t flags) {
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb = {.send = note_sent},
        .user_data = operation,
    };
}

void wh_ucx_send(wh_ucx_station *station, wh_ucx_operation *operation, const uint8_t header[WH_UCX_HEADER_BYTES],
                 const void *data, size_t size, bool rendezvous) {
    begin(station, operation);
    ucp_request_param_t param = send_param(operation, rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
    note_begun(operation, station->ucx->ucp_am_send_nbx(station->peer, MESSAGE_ID, header, WH_UCX_HEADER_BYTES, data,
                                                        size, &param));
}

void wh_ucx_receive(wh_ucx_station *station, wh_ucx_operation *operation, void *data, void *to, size_t size) {
    begin(station, operation);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.recv_am = note_received},
        .user_data = operation,
    };
    note_begun(operation, station->ucx->ucp_am_recv_data_nbx(station->worker, data, to, size, &param));
}

void wh_ucx_turn(wh_ucx_station *station, const wh_stop *stop) {
    const wh_ucx_library *ucx = station->ucx;
    if (ucx->ucp_worker_progress(station->worker)) {
        station->idle = 0;
    } else if (++station->idle > IDLE_TURNS && ucx->ucp_worker_arm(station->worker) == UCS_OK) {
        wh_stop_wait_fd(stop, station->wake, POLLIN, wh_deadline_in_ms(WAIT_MS));
    }
}

/** Lets UCX get on until nothing is pending, or for so long. */
static void settle(wh_ucx_station *station, int milliseconds) {
    const wh_ucx_library *ucx = station->ucx;
    wh_deadline soon = wh_deadline_in_ms(milliseconds);
    while (station->pending && !wh_deadline_passed(soon)) {
        if (!ucx->ucp_worker_progress(station->worker) && ucx->ucp_worker_arm(station->worker) == UCS_OK) {
            poll(&(struct pollfd){station->wake, POLLIN, 0}, 1, 1);
        }
    }
}

/**
 * UCX ends requests at once when a connection is closed, and goes on with the copies behind them, which it must not be destroyed before. So what is under way may
 * first end by itself, which takes no longer than a copy where the peer is there; and afterwards UCX gets on until it has nothing to do.
 */
void wh_ucx_station_disconnect(wh_ucx_station *station) {
    const wh_ucx_library *ucx = station->ucx;
    if (!station->peer) {
        return;
    }
    wh_ucx_operation closing;
    wh_ucx_enter();
    bool soiled = station->lost != UCS_OK || station->pending;
    if (station->lost == UCS_OK) {
        settle(station, DRAIN_MS);
    }
    begin(station, &closing);
    ucp_request_param_t param = send_param(&closing, UCP_EP_CLOSE_FLAG_FORCE);
    note_begun(&closing, ucx->ucp_ep_close_nbx(station->peer, &param));
    settle(station, END_MS);
    wh_deadline soon = wh_deadline_in_ms(END_MS);
    for (int quiet = 0; soiled && quiet < QUIET_TURNS && !wh_deadline_passed(soon);) {
        quiet = ucx->ucp_worker_progress(station->worker) ? 0 : quiet + 1;
    }
    station->peer = NULL;
    station->lost = UCS_OK;
    wh_ucx_leave();
}

/** A line of UCX's account of an endpoint has "lane[0]:  2:tcp/lo.0 md[1] ...": adds "tcp/lo", once. */
static void add_lane(const char *line, char *text, size_t size) {
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

const char *wh_ucx_station_ways(wh_ucx_station *station) {
    char *account = NULL;
    size_t length;
    FILE *stream = station->peer && !station->ways[0] ? open_memstream(&account, &length) : NULL;
    if (!stream) {
        return station->ways;
    }
    station->ucx->ucp_ep_print_info(station->peer, stream);
    fclose(stream);
    char *rest = account;
    for (char *line = account ? strsep(&rest, "\n") : NULL; line; line = strsep(&rest, "\n")) {
        add_lane(line, station->ways, sizeof(station->ways));
    }
    free(account);
    return station->ways;
}
