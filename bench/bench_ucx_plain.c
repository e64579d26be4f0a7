#include "bench_ucx_plain.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum { AM_ID = 3, SPINS = 1000 };

/** The state of one thread. */
typedef struct place {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h peer;
    bool source;
    const bench_state *state;
    plain_api api;
    size_t first; /**< Number of its first extent. */
    size_t step;  /**< Distance from each of its extents to the next. */
    size_t left;  /**< Number of operations in progress. */
} place;

struct plain_ucx {
    place places[PLAIN_THREADS_MAX];
};

static void check(ucs_status_t status, const char *what) {
    if (status != UCS_OK) {
        bench_die("plain UCX: %s: %s", what, ucs_status_string(status));
    }
}

/* ---- operations ---- */

static void note_sent(void *request, ucs_status_t status, void *argument) {
    check(status, "sending");
    ((place *)argument)->left--;
    ucp_request_free(request);
}

static void note_tag_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *argument) {
    (void)info;
    note_sent(request, status, argument);
}

static void note_am_received(void *request, ucs_status_t status, size_t length, void *argument) {
    (void)length;
    note_sent(request, status, argument);
}

/** Records the result of a call. NULL means that the operation is already complete. */
static void note_begun(place *own, ucs_status_ptr_t answer) {
    if (UCS_PTR_IS_ERR(answer)) {
        check(UCS_PTR_STATUS(answer), "beginning");
    }
    own->left -= answer == NULL;
}

static ucp_request_param_t param_of(place *own) {
    return (ucp_request_param_t){.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb = {.send = note_sent},
                                 .user_data = own};
}

static ucs_status_t take_message(void *argument, const void *header, size_t header_size, void *data, size_t size,
                                 const ucp_am_recv_param_t *recv) {
    place *own = argument;
    size_t number;
    memcpy(&number, header, header_size < sizeof(number) ? header_size : sizeof(number));
    void *to = own->state->extents[number].iov_base;
    if (!(recv->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(to, data, size);
        own->left--;
        return UCS_OK;
    }
    ucp_request_param_t param = param_of(own);
    param.cb.recv_am = note_am_received;
    note_begun(own, ucp_am_recv_data_nbx(own->worker, data, to, size, &param));
    return UCS_INPROGRESS;
}

static void begin(place *own, size_t *number) {
    const struct iovec *extent = own->state->extents + *number;
    ucp_request_param_t param = param_of(own);
    if (own->source && own->api == PLAIN_TAG) {
        note_begun(own, ucp_tag_send_nbx(own->peer, extent->iov_base, extent->iov_len, *number, &param));
    } else if (own->source) {
        note_begun(
            own, ucp_am_send_nbx(own->peer, AM_ID, number, sizeof(*number), extent->iov_base, extent->iov_len, &param));
    } else if (own->api == PLAIN_TAG) {
        param.cb.recv = note_tag_received;
        note_begun(own, ucp_tag_recv_nbx(own->worker, extent->iov_base, extent->iov_len, *number, UINT64_MAX, &param));
    }
}

static void *work(void *argument) {
    place *own = argument;
    size_t count = (own->state->count - own->first + own->step - 1) / own->step;
    size_t *numbers = bench_alloc(count, sizeof(*numbers));
    own->left = count;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = own->first + i * own->step;
        begin(own, numbers + i);
    }
    for (int idle = 0; own->left;) {
        idle = ucp_worker_progress(own->worker) ? 0 : idle + 1;
        if (idle > SPINS) {
            sched_yield();
        }
    }
    free(numbers);
    return NULL;
}

void plain_run(plain_ucx *ucx, const bench_state *state, plain_api api, int threads) {
    pthread_t others[PLAIN_THREADS_MAX];
    for (int i = 0; i < threads; i++) {
        place *own = ucx->places + i;
        own->state = state;
        own->api = api;
        own->first = (size_t)i;
        own->step = (size_t)threads;
        if (i > 0 && pthread_create(others + i, NULL, work, own) != 0) {
            bench_die("cannot start a thread");
        }
    }
    work(ucx->places);
    for (int i = 1; i < threads; i++) {
        pthread_join(others[i], NULL);
    }
}

/* ---- workers ---- */

static void open_place(place *own) {
    ucp_config_t *config;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_AM};
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                      .id = AM_ID,
                                      .cb = take_message,
                                      .arg = own};
    check(ucp_config_read(NULL, NULL, &config), "reading settings");
    check(ucp_init(&params, config, &own->context), "starting");
    ucp_config_release(config);
    check(ucp_worker_create(own->context, &worker, &own->worker), "making a worker");
    check(ucp_worker_set_am_recv_handler(own->worker, &handler), "setting a handler");
}

static void connect_place(place *own, const void *address) {
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    check(ucp_ep_create(own->worker, &params, &own->peer), "connecting");
}

plain_ucx *plain_create(bench_world *world, plain_meeting *meeting, bool source) {
    plain_ucx *ucx = bench_alloc(1, sizeof(*ucx));
    for (int i = 0; i < PLAIN_THREADS_MAX; i++) {
        place *own = ucx->places + i;
        ucp_address_t *address;
        own->source = source;
        open_place(own);
        check(ucp_worker_get_address(own->worker, &address, &meeting->sizes[source][i]), "asking for an address");
        if (meeting->sizes[source][i] > PLAIN_ADDRESS_MAX) {
            bench_die("plain UCX: the address of a worker has %zu bytes, which is too long", meeting->sizes[source][i]);
        }
        memcpy(meeting->addresses[source][i], address, meeting->sizes[source][i]);
        ucp_worker_release_address(own->worker, address);
    }
    bench_gate(world);
    for (int i = 0; i < PLAIN_THREADS_MAX; i++) {
        connect_place(ucx->places + i, meeting->addresses[!source][i]);
    }
    bench_gate(world);
    return ucx;
}

void plain_destroy(plain_ucx *ucx) {
    for (int i = 0; i < PLAIN_THREADS_MAX; i++) {
        ucp_worker_destroy(ucx->places[i].worker);
        ucp_cleanup(ucx->places[i].context);
    }
    free(ucx);
}
