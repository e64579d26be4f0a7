/**
 * @file nccl_library.h  Inside the nccl lane: the calls of NCCL that are used, found at run time, so that none is needed to build or to run.
 *
 * The declarations are Wherry's own, of what NCCL's binary interface has kept since 2.18.
 */
#ifndef WH_LANE_NCCL_NCCL_LIBRARY_H
#define WH_LANE_NCCL_NCCL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

typedef struct wh_nccl_handle_tag *wh_nccl_handle;

/** Answers that mean something here; the others are only named. */
enum {
    WH_NCCL_OK = 0,
    WH_NCCL_REMOTE_ERROR = 6,
    WH_NCCL_IN_PROGRESS = 7,
};

enum {
    WH_NCCL_MAGIC = (int)0xcafebeef,
    WH_NCCL_CONFIG_VERSION = 21800, /**< Of the struct below, as the oldest library that is taken has it. */
    WH_NCCL_OLDEST = 21800,
    WH_NCCL_INT8 = 0, /**< A type of one byte. */
    WH_NCCL_ID_BYTES = 128,
};

/** How the two sides of a communicator find each other. */
typedef struct wh_nccl_unique {
    char bytes[WH_NCCL_ID_BYTES];
} wh_nccl_unique;

/** Later versions have further members, which its size says are not there. */
typedef struct wh_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cluster_size;
    int min_blocks; /**< Of threads, on the device. */
    int max_blocks;
    const char *network;
    int split_share;
    int traffic_class; /**< Where 2.18 has nothing. */
} wh_nccl_config;

/** X(MEMBER, SYMBOL, RESULT, ARGUMENTS): every call that is used. */
#define WH_NCCL_CALLS(X)                                                                                               \
    X(get_version, ncclGetVersion, int, (int *version))                                                                \
    X(get_unique, ncclGetUniqueId, int, (wh_nccl_unique * unique))                                                     \
    X(init, ncclCommInitRankConfig, int,                                                                               \
      (wh_nccl_handle * handle, int count, wh_nccl_unique unique, int rank, wh_nccl_config *config))                   \
    X(async_error, ncclCommGetAsyncError, int, (wh_nccl_handle handle, int *result))                                   \
    X(abort, ncclCommAbort, int, (wh_nccl_handle handle))                                                              \
    X(send, ncclSend, int, (const void *from, size_t count, int type, int peer, wh_nccl_handle handle, void *stream))  \
    X(receive, ncclRecv, int, (void *to, size_t count, int type, int peer, wh_nccl_handle handle, void *stream))       \
    X(error_text, ncclGetErrorString, const char *, (int result))                                                      \
    X(last_error, ncclGetLastError, const char *, (wh_nccl_handle handle))

typedef struct wh_nccl_library {
#define WH_X(member, symbol, result, arguments) result(*member) arguments;
    WH_NCCL_CALLS(WH_X)
#undef WH_X
    int version; /**< 22707 is 2.27.7. */
} wh_nccl_library;

/** The library: libnccl.so.2, or the file that WHERRY_NCCL_LIBRARY names; NULL where there is none, with the reason in error. Found once a process. Any thread. */
const wh_nccl_library *wh_nccl_find(wherry_error *error);

/**
 * Fills an error with an answer of NCCL.
 * @param handle  may be NULL.
 * @param doing   as in "cannot send: ".
 * @return WHERRY_PEER_LOST where it is the other side's, else WHERRY_SYSTEM.
 */
wherry_status wh_nccl_fail(wherry_error *error, int result, wh_nccl_handle handle, const char *doing);

#endif
