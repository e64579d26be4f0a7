/** @file boot.h  Where a process is: which boot of which machine, and which network namespace there. What two processes on one host have in common. */
#ifndef WH_BASE_BOOT_H
#define WH_BASE_BOOT_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/base.h>

enum {
    WH_BOOT_BYTES = 36,    /**< A boot id is a text of so many bytes, without a zero at its end. */
    WH_NETWORK_BYTES = 16, /**< Device and inode of a network namespace, big endian. */
};

/** Reads the boot id. @return WHERRY_OK; WHERRY_UNSUPPORTED where the kernel does not tell. */
wherry_status wh_boot_read(void *boot, wherry_error *error);

/** Whether a boot id, of WH_BOOT_BYTES, is this one's. */
bool wh_boot_is_this(const void *boot);

/** Reads which network namespace the process is in. @return as wh_boot_read. */
wherry_status wh_network_read(uint8_t network[WH_NETWORK_BYTES], wherry_error *error);

/** Which process, of which pid namespace, since which start of which machine. A process number means something only where the rest is equal. */
typedef struct wh_identity {
    uint64_t process;
    uint64_t namespace_device;
    uint64_t namespace_inode; /**< 0: the kernel does not tell the namespace. */
    char boot[WH_BOOT_BYTES];
} wh_identity;

/** Who this process is. @return as wh_boot_read. */
wherry_status wh_identity_read(wh_identity *identity_p, wherry_error *error);

/** Whether a process number of one means the same to the other. */
bool wh_identity_same_numbers(const wh_identity *one, const wh_identity *other);

#endif
