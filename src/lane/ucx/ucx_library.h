/** @file ucx_library.h  libucp, loaded at run time. */
#ifndef WH_LANE_UCX_LIBRARY_H
#define WH_LANE_UCX_LIBRARY_H

#include <stdbool.h>
#include <ucp/api/ucp.h>

#include <wherry/base.h>

/** The functions that the lane calls. All are in every version from WH_UCX_MAJOR.WH_UCX_MINOR on. */
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

enum { WH_UCX_MAJOR = 1, WH_UCX_MINOR = 15 };

/** From this minor version on a setting of a transport is named as in the environment; before, without the transport. */
enum { WH_UCX_WHOLE_NAMES_MINOR = 17 };

/** libucp, by its functions' own names. */
typedef struct wh_ucx_library {
#define WH_UCX_MEMBER(function) __typeof__ (&(function))(function);
    WH_UCX_FUNCTIONS(WH_UCX_MEMBER)
#undef WH_UCX_MEMBER
    unsigned minor; /**< Of its version. */
    bool foreign;   /**< It was in the process already: others may use it too. */
} wh_ucx_library;

/**
 * Loads libucp at the first call; it stays for ever. The one that is in the process already, such as MPI's, is taken, since two do not go together. Else the
 * file that WHERRY_UCX_LIBRARY names, else libucp.so.0. Any thread.
 * @return NULL with the reason, WHERRY_UNSUPPORTED; a later call tries again.
 */
const wh_ucx_library *wh_ucx_load(wherry_error *error);

/** What a thread's calls of UCX have to say goes to Wherry's log between these two, which may be nested. UCX would write it to standard output. */
void wh_ucx_enter(void);
void wh_ucx_leave(void);

#endif
