/** @file arrival.h  Files that arrive: written beside while they do, by the receive itself, and moved into place at the end. */
#ifndef WH_CLI_ARRIVAL_H
#define WH_CLI_ARRIVAL_H

#include <stdbool.h>
#include <stddef.h>

#include <wherry/checkpoint.h>
#include <wherry/file.h>

#include "show.h"

/** Where they go, and what became of them. The first members are the caller's wishes; the others start as 0. */
typedef struct wh_arrival {
    const char *output; /**< A file, or a folder. */
    const char *only;   /**< A pattern of names; NULL: everything, byte for byte. */
    bool resume;        /**< Go on with what an earlier one left, and leave what has come. */
    bool sync;          /**< The bytes are on the disk when it ends. */
    wh_bar *bar;        /**< NULL: nobody looks. */
    const char *trace;  /**< The file to write a trace to; NULL: none. */

    wherry_file_writer **writers;
    char **paths;
    size_t count;
    wherry_value *target;
    bool needs_states;  /**< It failed since bytes alone were offered, and another format is wanted. */
    wherry_error error; /**< Why the state was not accepted; status WHERRY_OK where it was. */
    wherry_stats stats;
} wh_arrival;

/**
 * Receives the files that a rank sends, and moves them into place.
 * @return what wherry_checkpoint_recv, wherry_file_writer_create and _finish do; WHERRY_MALFORMED where no files are sent; WHERRY_NOT_FOUND where nothing
 * fits `only`.
 */
wherry_status wh_arrival_receive(wh_arrival *arrival, wherry_transport *transport, int32_t rank, const char *lanes,
                                 wherry_error *error);

/** Ends it: what was not moved into place is removed, or left where it can be resumed. */
void wh_arrival_end(wh_arrival *arrival);

/** Tells what arrived. */
void wh_arrival_tell(const wh_arrival *arrival, const wh_common *common);

#endif
