/** @file boot.h  Which boot of which machine this is: what two processes on one host have in common. */
#ifndef WH_LANE_BOOT_H
#define WH_LANE_BOOT_H

#include <wherry/error.h>

/** A boot id is a text of so many bytes, without a zero at its end. */
enum { WH_BOOT_BYTES = 36 };

/** Reads it. @return WHERRY_OK; WHERRY_UNSUPPORTED where the kernel does not tell. */
wherry_status wh_boot_read(void *boot, wherry_error *error);

#endif
