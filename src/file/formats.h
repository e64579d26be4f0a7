/** @file formats.h  The formats, one table of operations each; formats.c lists them. */
#ifndef WH_FILE_FORMATS_H
#define WH_FILE_FORMATS_H

#include <wherry/file.h>

#include "file/layout.h"
#include "file/opened.h"

typedef struct wh_format {
    wherry_file_format format;
    const char *name;
    const char *ending; /**< Of file names; NULL: neither a name nor the content tells it. */

    /** Whether the first bytes of a file are of this format; NULL: it is told by its name alone. */
    bool (*matches)(const uint8_t *head, size_t size);

    /** Fills file->state and what is known of the summary, of a file whose first mapping is open and not mapped yet. What it has made is destroyed with the file. */
    wherry_status (*open)(wherry_file *file, wherry_error *error);

    /** wherry_file_accepts. */
    wherry_status (*accepts)(const wherry_value *state, wherry_error *error);

    /** Lays out the files for a state that is accepted. */
    wherry_status (*lay_out)(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error);

    /** Adds what only the bytes of the tensors tell, when all are there; NULL: nothing. */
    wherry_status (*seal)(const wh_layout *layout, wherry_error *error);
} wh_format;

/** NULL for a value that is no format. */
const wh_format *wh_format_get(wherry_file_format format);

/** The format of a file, by its first bytes and its name; NULL: none that is known. */
const wh_format *wh_format_detect(const char *path, const uint8_t *head, size_t size);

/** As many bytes of a file as formats are told by. */
enum { WH_FORMAT_HEAD = 16 };

extern const wh_format wh_format_safetensors;
extern const wh_format wh_format_sharded;
extern const wh_format wh_format_native;
extern const wh_format wh_format_bytes;

#endif
