/** @file ucx_library.h  libucp, loaded at run time. */
#ifndef WH_LANE_UCX_LIBRARY_H
#define WH_LANE_UCX_LIBRARY_H

#include <stdbool.h>
#include <ucp/api/ucp.h>

#include <wherry/base.h>

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
 * The oldest version that is used. Before 1.14, UCX ends the process if a peer dies while it
 * connects; 1.15 is the oldest one that the tests have run with. The headers of the build may be
 * older.
 */
enum { WH_UCX_MAJOR = 1, WH_UCX_MINOR = 15 };

/** From this minor version on, the name of a transport's setting begins with the transport. */
enum { WH_UCX_FULL_NAMES_MINOR = 17 };

/** Pointers to the functions, by their own names. */
typedef struct wh_ucx_library {
#define WH_UCX_MEMBER(function) __typeof__ (&(function))(function);
    WH_UCX_FUNCTIONS(WH_UCX_MEMBER)
#undef WH_UCX_MEMBER
    unsigned minor; /**< Of its version. */
    bool foreign;   /**< It was in the process before, so that others may use it too. */
} wh_ucx_library;

/**
 * Loads libucp if it is not loaded yet. It is never unloaded. A libucp that is in the process
 * already, such as MPI's, is used, because two copies do not work together; otherwise the file that
 * WHERRY_UCX_LIBRARY names; otherwise libucp.so.0. Any thread.
 * @return NULL with the reason, WHERRY_UNSUPPORTED. A later call tries again.
 */
const wh_ucx_library *wh_ucx_load(wherry_error *error);

/**
 * Between these two, what UCX logs on this thread goes to Wherry's log instead of to standard
 * output. May be nested.
 */
void wh_ucx_enter(void);
void wh_ucx_leave(void);

#endif
