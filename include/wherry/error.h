/**
 * @file wherry/error.h  What went wrong, where, and what to do.
 *
 * Functions that can fail take a wherry_error as their last argument. It belongs to the caller, may be NULL, needs no
 * preparation and holds no resources. It is written where the fault is found, and only when the call fails: after a
 * success its content is what it was before.
 */
#ifndef WHERRY_ERROR_H
#define WHERRY_ERROR_H

#include <stdint.h>

#include <wherry/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of wherry_error.path, its final zero included. */
#define WHERRY_ERROR_PATH_MAX 256
/** Bytes of wherry_error.message, its final zero included. */
#define WHERRY_ERROR_MESSAGE_MAX 704

/** The record of one failure. Since 0.1. */
typedef struct wherry_error {
    wherry_status status;             /**< The same value that the call returned. */
    int32_t errnum;                   /**< errno of the system call that failed, else 0. */
    int32_t rank;                     /**< The rank that it is about, else -1. */
    uint32_t reserved;                /**< 0. */
    uint64_t offset;                  /**< Byte offset in the input that was read, else UINT64_MAX. */
    char path[WHERRY_ERROR_PATH_MAX]; /**< Path of the value that it is about, else "". Long ones are cut: "a…z". */
    char message[WHERRY_ERROR_MESSAGE_MAX]; /**< One sentence: what happened, and what to do. UTF-8. */
} wherry_error;

#ifdef __cplusplus
}
#endif
#endif
