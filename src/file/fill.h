/** @file fill.h  Copying the bytes of a state into the places of its layout. */
#ifndef WH_FILE_FILL_H
#define WH_FILE_FILL_H

#include <wherry/expert.h>

#include "file/layout.h"

/**
 * Writes the bytes that the tensors of a state cover, and no others.
 * @param layout  made of that state, its files mapped.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED where a tensor is not in host memory; WHERRY_SYSTEM; WHERRY_NO_MEMORY.
 */
wherry_status wh_layout_fill(const wh_layout *layout, const wherry_value *state, wherry_error *error);

/** How states are prepared for files: what is in a file follows from the state alone. */
wherry_prepare_options wh_file_prepare_options(void);

#endif
