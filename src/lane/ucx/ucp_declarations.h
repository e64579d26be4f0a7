/**
 * @file ucp_declarations.h  What the lane uses of UCX, as UCX 1.13 and later versions declare it.
 *
 * UCX is loaded at run time, so Wherry builds without UCX's headers. Names and layouts are UCX's;
 * members that Wherry does not use are there for the layout. UCX extends a structure at its end
 * only, and reads a member only if the field mask names it. tests/unit/test_ucx_declarations.c
 * compares this file with UCX's headers: if they were included before, only the functions are
 * declared, and the compiler compares them.
 */
#ifndef WH_LANE_UCX_DECLARATIONS_H
#define WH_LANE_UCX_DECLARATIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#ifndef UCP_API_VERSION

/** UCX returns it in one byte. A call that starts an operation returns it as a pointer instead. */
typedef enum {
    UCS_OK = 0,
    UCS_INPROGRESS = 1,
    UCS_ERR_NO_MEMORY = -4,
    UCS_ERR_NOT_CONNECTED = -24,
    UCS_ERR_CONNECTION_RESET = -25,
    UCS_ERR_LAST = -100,
} __attribute__((packed)) ucs_status_t;

/** NULL: done. A pointer: the operation has begun. Otherwise the negative status as a pointer. */
typedef void *ucs_status_ptr_t;

#define UCS_PTR_IS_PTR(pointer) ((uintptr_t)(pointer)-1 < (uintptr_t)UCS_ERR_LAST - 1)
#define UCS_PTR_STATUS(pointer) (UCS_PTR_IS_PTR(pointer) ? UCS_INPROGRESS : (ucs_status_t)(intptr_t)(pointer))

typedef struct ucp_config ucp_config_t;
typedef struct ucp_address ucp_address_t;
typedef struct ucp_context *ucp_context_h;
typedef struct ucp_worker *ucp_worker_h;
typedef struct ucp_ep *ucp_ep_h;

enum {
    UCP_PARAM_FIELD_FEATURES = 1 << 0,
    UCP_PARAM_FIELD_NAME = 1 << 8,
    UCP_FEATURE_WAKEUP = 1 << 4,
    UCP_FEATURE_AM = 1 << 6,
};

typedef struct ucp_params {
    uint64_t field_mask;
    uint64_t features;
    size_t request_size;
    void (*request_init)(void *request);
    void (*request_cleanup)(void *request);
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_num_eps;
    size_t estimated_num_ppn;
    const char *name;
} ucp_params_t;

enum { UCP_WORKER_PARAM_FIELD_THREAD_MODE = 1 << 0 };

typedef enum { UCS_THREAD_MODE_SINGLE, UCS_THREAD_MODE_SERIALIZED } ucs_thread_mode_t;

typedef struct ucp_worker_params {
    uint64_t field_mask;
    ucs_thread_mode_t thread_mode;
    uint64_t cpu_mask[16];
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t am_alignment;
    uint64_t client_id;
} ucp_worker_params_t;

enum {
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS = 1 << 0,
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1 << 1,
    UCP_EP_PARAM_FIELD_ERR_HANDLER = 1 << 2,
    UCP_EP_CLOSE_FLAG_FORCE = 1 << 0,
};

typedef enum { UCP_ERR_HANDLING_MODE_NONE, UCP_ERR_HANDLING_MODE_PEER } ucp_err_handling_mode_t;

typedef struct ucp_err_handler {
    void (*cb)(void *argument, ucp_ep_h peer, ucs_status_t status);
    void *arg;
} ucp_err_handler_t;

typedef struct ucs_sock_addr {
    const struct sockaddr *addr;
    socklen_t addrlen;
} ucs_sock_addr_t;

typedef struct ucp_ep_params {
    uint64_t field_mask;
    const ucp_address_t *address;
    ucp_err_handling_mode_t err_mode;
    ucp_err_handler_t err_handler;
    void *user_data;
    unsigned flags;
    ucs_sock_addr_t sockaddr;
    struct ucp_conn_request *conn_request;
    const char *name;
    ucs_sock_addr_t local_sockaddr;
} ucp_ep_params_t;

enum {
    UCP_AM_HANDLER_PARAM_FIELD_ID = 1 << 0,
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS = 1 << 1,
    UCP_AM_HANDLER_PARAM_FIELD_CB = 1 << 2,
    UCP_AM_HANDLER_PARAM_FIELD_ARG = 1 << 3,
    UCP_AM_FLAG_WHOLE_MSG = 1 << 0,
    UCP_AM_RECV_ATTR_FLAG_RNDV = 1 << 17,
    UCP_AM_SEND_FLAG_EAGER = 1 << 1,
    UCP_AM_SEND_FLAG_RNDV = 1 << 2,
};

typedef struct ucp_am_recv_param {
    uint64_t recv_attr;
    ucp_ep_h reply_ep;
} ucp_am_recv_param_t;

typedef struct ucp_am_handler_param {
    uint64_t field_mask;
    unsigned id;
    uint32_t flags;
    ucs_status_t (*cb)(void *argument, const void *header, size_t header_length, void *data, size_t length,
                       const ucp_am_recv_param_t *param);
    void *arg;
} ucp_am_handler_param_t;

enum {
    UCP_OP_ATTR_FIELD_CALLBACK = 1 << 1,
    UCP_OP_ATTR_FIELD_USER_DATA = 1 << 2,
    UCP_OP_ATTR_FIELD_FLAGS = 1 << 4,
};

typedef struct {
    uint32_t op_attr_mask;
    uint32_t flags;
    void *request;
    union {
        void (*send)(void *request, ucs_status_t status, void *user_data);
        void (*recv_am)(void *request, ucs_status_t status, size_t length, void *user_data);
    } cb;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    int memory_type;
    void *recv_info;
    struct ucp_mem *memh;
} ucp_request_param_t;

#endif

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
const char *ucp_get_version_string(void);
ucs_status_t ucp_config_read(const char *prefix, const char *file, ucp_config_t **config_p);
ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value);
void ucp_config_release(ucp_config_t *config);
ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params, const ucp_config_t *config,
                              ucp_context_h *context_p);
void ucp_cleanup(ucp_context_h context);
ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params, ucp_worker_h *worker_p);
void ucp_worker_destroy(ucp_worker_h worker);
ucs_status_t ucp_worker_get_address(ucp_worker_h worker, ucp_address_t **address_p, size_t *length_p);
void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t *address);
ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *fd_p);
ucs_status_t ucp_worker_arm(ucp_worker_h worker);
unsigned ucp_worker_progress(ucp_worker_h worker);
ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker, const ucp_am_handler_param_t *param);
ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *peer_p);
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h peer, const ucp_request_param_t *param);
void ucp_ep_print_info(ucp_ep_h peer, FILE *stream);
ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h peer, unsigned id, const void *header, size_t header_length,
                                 const void *buffer, size_t count, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void *data, void *buffer, size_t count,
                                      const ucp_request_param_t *param);
void ucp_am_data_release(ucp_worker_h worker, void *data);
void ucp_request_free(void *request);
const char *ucs_status_string(ucs_status_t status);

#endif
