/** @file boot.h  Where a process is: which boot of which machine, and which network namespace there. What two processes on one host have in common. */
#ifndef WH_BASE_BOOT_H
#define WH_BASE_BOOT_H

#include <stdint.h>

#include <wherry/error.h>

enum {
    WH_BOOT_BYTES = 36,    /**< A boot id is a text of so many bytes, without a zero at its end. */
    WH_NETWORK_BYTES = 16, /**< Device and inode of a network namespace, big endian. */
};

/** Reads the boot id. @return WHERRY_OK; WHERRY_UNSUPPORTED where the kernel does not tell. */
wherry_status wh_boot_read(void *boot, wherry_error *error);

/** Reads which network namespace the process is in. @return as wh_boot_read. */
wherry_status wh_network_read(uint8_t network[WH_NETWORK_BYTES], wherry_error *error);

#endif
