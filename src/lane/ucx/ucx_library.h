/** @file ucx_library.h  Loads libucp at run time. */
#ifndef WH_LANE_UCX_LIBRARY_H
#define WH_LANE_UCX_LIBRARY_H

#include <stdbool.h>

#include <wherry/base.h>

#include "lane/ucx/ucp_declarations.h"

/** The functions that the lane calls. */
#define WH_UCX_FUNCTIONS(X)                                                                                            \
    X(ucp_get_version)                                                                                                 \
    X(ucp_get_version_string)                                                                                          \
    X(ucp_config_read)                                                                                                 \
    X(ucp_config_modify)                                                                                               \
    X(ucp_config_release)                                                                                              \
    X(ucp_init_version)                                                                                                \
    X(ucp_cleanup)                                                                                                     \
    X(ucp_worker_create)                                                                                               \
    X(ucp_worker_destroy)                                                                                              \
    X(ucp_worker_get_address)                                                                                          \
    X(ucp_worker_release_address)                                                                                      \
    X(ucp_worker_get_efd)                                                                                              \
    X(ucp_worker_arm)                                                                                                  \
    X(ucp_worker_progress)                                                                                             \
    X(ucp_worker_set_am_recv_handler)                                                                                  \
    X(ucp_ep_create)                                                                                                   \
    X(ucp_ep_close_nbx)                                                                                                \
    X(ucp_ep_print_info)                                                                                               \
    X(ucp_am_send_nbx)                                                                                                 \
    X(ucp_am_recv_data_nbx)                                                                                            \
    X(ucp_am_data_release)                                                                                             \
    X(ucp_request_free)                                                                                                \
    X(ucs_status_string)

/**
 * The oldest supported version. Before 1.14, UCX ends the process if a peer dies while the two are
 * connecting. 1.15 is the oldest version that was tested.
 */
enum { WH_UCX_MAJOR = 1, WH_UCX_MINOR = 15 };

/** Since this minor version, the name of a TCP setting begins with "TCP_". */
enum { WH_UCX_FULL_NAMES_MINOR = 17 };

/** Pointers to the functions. Each member has the name of its function. */
typedef struct wh_ucx_library {
#define WH_UCX_MEMBER(function) __typeof__ (&(function))(function);
    WH_UCX_FUNCTIONS(WH_UCX_MEMBER)
#undef WH_UCX_MEMBER
    unsigned minor; /**< The minor version number. */
    bool foreign;   /**< The program had loaded libucp before, so other code may use it too. */
} wh_ucx_library;

/**
 * Returns libucp. The first call loads it, and it is never unloaded. If the process has already
 * loaded a libucp, for example for MPI, that one is used, because two copies do not work together.
 * Otherwise, the file that WHERRY_UCX_LIBRARY names is used, or libucp.so.0 if the variable is not
 * set. Any thread may call this.
 * @return NULL, with WHERRY_UNSUPPORTED and the reason in `error`, if loading fails. A later call
 * tries again.
 */
const wh_ucx_library *wh_ucx_load(wherry_error *error);

/**
 * Between wh_ucx_enter and wh_ucx_leave, log lines of UCX on this thread go to Wherry's log instead
 * of standard output. Calls may be nested.
 */
void wh_ucx_enter(void);
void wh_ucx_leave(void);

#endif
