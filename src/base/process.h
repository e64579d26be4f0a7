/**
 * @file process.h  Process and host identity, the number of processors, and safety across fork().
 */
#ifndef WH_BASE_PROCESS_H
#define WH_BASE_PROCESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

enum {
    WH_BOOT_BYTES = 36,    /**< A boot id is a text of this size, without a final zero. */
    WH_NETWORK_BYTES = 16, /**< Device and inode of a network namespace, big endian. */
};

/**
 * Reads the boot id, which is equal for all processes on a host.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED without /proc.
 */
wherry_status wh_boot_read(void *boot, wherry_error *error);

/** Reads which network namespace the process is in. @return as wh_boot_read. */
wherry_status wh_network_read(uint8_t network[WH_NETWORK_BYTES], wherry_error *error);

/** A process: its pid, the pid namespace that the pid belongs to, and the boot of the host. */
typedef struct wh_identity {
    uint64_t process;
    uint64_t namespace_device;
    uint64_t namespace_inode; /**< 0: unknown. */
    char boot[WH_BOOT_BYTES];
} wh_identity;

/** Reads the identity of this process. @return as wh_boot_read. */
wherry_status wh_identity_read(wh_identity *identity_p, wherry_error *error);

/** True if both processes share a pid namespace, so that the pid of one is valid for the other. */
bool wh_identity_shares_pids(const wh_identity *one, const wh_identity *other);

/** The number of processors that the calling thread may run on; 1 if unknown. */
size_t wh_cpu_count(void);

/**
 * A lock over process-wide data that a child of fork() must not inherit in a half-changed or shared
 * state.
 *
 * A fork waits until nobody holds the lock, so the child finds it free and the data consistent.
 * in_child then resets what belongs to the parent.
 *
 * A thread that holds one takes no other, nor any lock that another fork handler takes. Static, and
 * never destroyed.
 */
typedef struct wh_fork_lock {
    pthread_mutex_t mutex;
    void (*before)(void);   /**< Runs before a fork, with the lock held. May be NULL. */
    void (*in_child)(void); /**< Runs in the child, with the lock held. May be NULL. */
    void (*after)(void);    /**< Runs in parent and child, last, with the lock held. May be NULL. */
    /** Registered with the fork handlers, by the first wh_fork_lock_take. */
    atomic_bool known;
    struct wh_fork_lock *next;
} wh_fork_lock;

/** Initializer, with handlers as designated initializers: WH_FORK_LOCK(.in_child = forget_all). */
#define WH_FORK_LOCK(...)                                                                                              \
    { .mutex = PTHREAD_MUTEX_INITIALIZER, __VA_ARGS__ }

void wh_fork_lock_take(wh_fork_lock *lock);
void wh_fork_lock_give(wh_fork_lock *lock);

/**
 * Allocates zeroed memory that the kernel zeroes again in a child of fork(). For data that other
 * processes read: they could read it in a child before in_child of a wh_fork_lock runs. Never
 * freed.
 * @return NULL with errno.
 */
void *wh_fork_wiped_alloc(size_t size);

#endif
