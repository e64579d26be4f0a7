/** @file storage.h  Private side of storages; see wherry/storage.h. */
#ifndef WH_STATE_STORAGE_H
#define WH_STATE_STORAGE_H

#include <stdbool.h>

#include <wherry/storage.h>

/** Whether the storage has no memory though it has bytes: it came from a manifest. */
bool wh_storage_is_bare(const wherry_storage *storage);

#endif
