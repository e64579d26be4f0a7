#include "file/zip.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fail.h"
#include "base/utf8.h"
#include "file/file_fail.h"
#include "file/little.h"

enum { COMMENT_MAX = 65535, STORED = 0, DEFLATED = 8, FLAG_ENCRYPTED = 1 };

#define NOT_SAID UINT64_C(0xFFFFFFFF)

/** Deflate makes of one byte so many at most: what says more is no deflated entry. */
#define RATIO_MAX UINT64_C(1032)

static wherry_status malformed(wherry_error *error, const wh_mapping *mapping, uint64_t offset, const char *what) {
    return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, offset), "%s at byte %llu", what,
                        (unsigned long long)offset);
}

/* ---- the end of the file ---- */

/** What the end of the file says about the directory. */
typedef struct ending {
    uint64_t at; /**< Where the records of the end begin: behind the directory. */
    uint64_t count;
    uint64_t size;
    uint64_t offset;
} ending;

/** The 64-bit record, where there is one. */
static wherry_status read_end64(const wh_mapping *mapping, uint64_t at, ending *end, wherry_error *error) {
    uint8_t record[WH_ZIP_END64_BYTES];
    if (at < WH_ZIP_LOCATOR_BYTES) {
        return WHERRY_OK;
    }
    wherry_status status = wh_mapping_read(mapping, at - WH_ZIP_LOCATOR_BYTES, record, WH_ZIP_LOCATOR_BYTES, error);
    if (status != WHERRY_OK || wh_load_little(record, 4) != WH_ZIP_LOCATOR) {
        return status;
    }
    uint64_t begin = wh_load_little(record + 8, 8);
    if (at - WH_ZIP_LOCATOR_BYTES < WH_ZIP_END64_BYTES || begin > at - WH_ZIP_LOCATOR_BYTES - WH_ZIP_END64_BYTES) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, wh_spot_byte(mapping->path, at - WH_ZIP_LOCATOR_BYTES),
                            "the zip file's 64-bit end lies outside");
    }
    status = wh_mapping_read(mapping, begin, record, sizeof(record), error);
    if (status == WHERRY_OK && wh_load_little(record, 4) != WH_ZIP_END64) {
        status = malformed(error, mapping, begin, "the zip file has no 64-bit end");
    }
    if (status == WHERRY_OK) {
        *end = (ending){begin, wh_load_little(record + 32, 8), wh_load_little(record + 40, 8),
                        wh_load_little(record + 48, 8)};
    }
    return status;
}

/** Finds the last record: a comment of any content may follow it. */
static wherry_status find_end(const wh_mapping *mapping, ending *end, wherry_error *error) {
    uint64_t size = wh_min(mapping->size, WH_ZIP_END_BYTES + COMMENT_MAX);
    uint64_t from = mapping->size - size;
    char *tail;
    wherry_status status = wh_mapping_copy(mapping, from, (size_t)size, &tail, error);
    if (status != WHERRY_OK) {
        return status;
    }
    bool found = false;
    for (uint64_t at = size < WH_ZIP_END_BYTES ? 0 : size - WH_ZIP_END_BYTES + 1; at-- > 0 && !found;) {
        const char *record = tail + at;
        if (wh_load_little(record, 4) == WH_ZIP_END && wh_load_little(record + 20, 2) == size - at - WH_ZIP_END_BYTES) {
            *end = (ending){from + at, wh_load_little(record + 10, 2), wh_load_little(record + 12, 4),
                            wh_load_little(record + 16, 4)};
            found = true;
        }
    }
    wh_free(tail);
    if (!found) {
        return wh_file_fail(error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, mapping->size),
                            "is a zip file without an end; get it anew");
    }
    return read_end64(mapping, end->at, end, error);
}

/* ---- the directory ---- */

/** Reads the 64-bit sizes of an entry, where the 32-bit ones say that they are there. */
static bool read_extra(const uint8_t *extra, size_t size, uint64_t *usize, uint64_t *csize, uint64_t *local) {
    uint64_t *const wanted[] = {usize, csize, local};
    bool complete = *usize != NOT_SAID && *csize != NOT_SAID && *local != NOT_SAID;
    while (size >= 4 && !complete) {
        size_t id = wh_load_little(extra, 2);
        size_t length = wh_load_little(extra + 2, 2);
        if (length > size - 4) {
            return false;
        }
        const uint8_t *at = extra + 4;
        size_t left = length;
        for (int i = 0; i < 3 && id == WH_ZIP_EXTRA64; i++) {
            if (*wanted[i] == NOT_SAID) {
                if (left < 8) {
                    return false;
                }
                *wanted[i] = wh_load_little(at, 8);
                at += 8;
                left -= 8;
            }
        }
        complete = id == WH_ZIP_EXTRA64;
        extra += 4 + length;
        size -= 4 + length;
    }
    return complete;
}

/** Checks the header in front of an entry's bytes, and finds where these begin. */
static wherry_status read_local(const wh_mapping *mapping, const wh_zip *zip, wh_zip_entry *entry, size_t name_size,
                                wherry_error *error) {
    uint8_t record[WH_ZIP_LOCAL_BYTES];
    wh_spot spot = {mapping->path, entry->name, name_size, entry->local};
    if (entry->local > zip->directory || zip->directory - entry->local < sizeof(record)) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot, "the zip file has it outside");
    }
    wherry_status status = wh_mapping_read(mapping, entry->local, record, sizeof(record), error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t name = wh_load_little(record + 26, 2);
    entry->offset = entry->local + sizeof(record) + name + wh_load_little(record + 28, 2);
    if (wh_load_little(record, 4) != WH_ZIP_LOCAL || name != name_size) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot, "the zip file's header in front of it is another's");
    }
    if (entry->offset > zip->directory || zip->directory - entry->offset < entry->packed) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot, "the zip file has its end outside");
    }
    char *copy;
    status = wh_mapping_copy(mapping, entry->local + sizeof(record), (size_t)name, &copy, error);
    if (status == WHERRY_OK) {
        if (memcmp(copy, entry->name, name_size) != 0) {
            status = wh_file_fail(error, WHERRY_MALFORMED, spot, "the zip file's header in front of it is another's");
        }
        wh_free(copy);
    }
    return status;
}

static wherry_status check_method(const wh_mapping *mapping, const uint8_t *record, const wh_zip_entry *entry,
                                  size_t name_size, wherry_error *error) {
    wh_spot spot = {mapping->path, entry->name, name_size, entry->local};
    uint64_t method = wh_load_little(record + 10, 2);
    if (wh_load_little(record + 8, 2) & FLAG_ENCRYPTED) {
        return wh_file_fail(error, WHERRY_UNSUPPORTED, spot, "it is encrypted");
    }
    if (method != STORED && method != DEFLATED) {
        return wh_file_fail(error, WHERRY_UNSUPPORTED, spot,
                            "it is compressed by method %d, and not by deflate; save it by numpy.savez", (int)method);
    }
    if (method == STORED ? entry->size != entry->packed : entry->size / RATIO_MAX > entry->packed) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot,
                            "the zip file has %llu bytes of it, which cannot be unpacked to %llu",
                            (unsigned long long)entry->packed, (unsigned long long)entry->size);
    }
    return WHERRY_OK;
}

/** Reads one entry of the directory. @param used_p  its bytes there. */
static wherry_status read_entry(const wh_mapping *mapping, wh_zip *zip, const uint8_t *record, size_t left, uint64_t at,
                                size_t *used_p, wherry_error *error) {
    if (left < WH_ZIP_CENTRAL_BYTES || wh_load_little(record, 4) != WH_ZIP_CENTRAL) {
        return malformed(error, mapping, at, "the zip file's directory has no entry");
    }
    size_t name = wh_load_little(record + 28, 2);
    size_t extra = wh_load_little(record + 30, 2);
    *used_p = WH_ZIP_CENTRAL_BYTES + name + extra + wh_load_little(record + 32, 2);
    uint64_t usize = wh_load_little(record + 24, 4);
    uint64_t csize = wh_load_little(record + 20, 4);
    uint64_t local = wh_load_little(record + 42, 4);
    const char *text = (const char *)record + WH_ZIP_CENTRAL_BYTES;
    if (*used_p > left || !read_extra(record + WH_ZIP_CENTRAL_BYTES + name, extra, &usize, &csize, &local)) {
        return malformed(error, mapping, at, "the zip file's directory is cut off");
    }
    if (!wh_utf8_valid(text, name) || memchr(text, '\0', name)) {
        return malformed(error, mapping, at, "the zip file has a name that is no UTF-8, or has a zero in it,");
    }
    wh_zip_entry entry = {.name = wh_copy_text(text, name),
                          .crc = (uint32_t)wh_load_little(record + 16, 4),
                          .local = local,
                          .packed = csize,
                          .size = usize,
                          .deflated = wh_load_little(record + 10, 2) == DEFLATED};
    if (!entry.name || !WH_GROW(zip->entries, zip->capacity, zip->count)) {
        wh_free(entry.name);
        return wh_fail_memory(error, "the entries of a zip file");
    }
    wherry_status status = check_method(mapping, record, &entry, name, error);
    if (status == WHERRY_OK) {
        status = read_local(mapping, zip, &entry, name, error);
    }
    if (status != WHERRY_OK) {
        wh_free(entry.name);
        return status;
    }
    zip->entries[zip->count++] = entry;
    return WHERRY_OK;
}

static int compare_locals(const void *one, const void *other) {
    const wh_zip_entry *a = *(wh_zip_entry *const *)one;
    const wh_zip_entry *b = *(wh_zip_entry *const *)other;
    return a->local < b->local ? -1 : a->local > b->local;
}

static wherry_status check_apart(const wh_mapping *mapping, const wh_zip *zip, wherry_error *error) {
    const wh_zip_entry **sorted = wh_alloc_array(zip->count, sizeof(wh_zip_entry *));
    if (!sorted) {
        return wh_fail_memory(error, "the entries of a zip file");
    }
    for (size_t i = 0; i < zip->count; i++) {
        sorted[i] = zip->entries + i;
    }
    if (zip->count > 0) {
        qsort(sorted, zip->count, sizeof(*sorted), compare_locals);
    }
    wherry_status status = WHERRY_OK;
    for (size_t i = 1; i < zip->count && status == WHERRY_OK; i++) {
        if (sorted[i]->local < sorted[i - 1]->offset + sorted[i - 1]->packed) {
            wh_spot spot = {mapping->path, sorted[i]->name, strlen(sorted[i]->name), sorted[i]->local};
            status = wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot, "the zip file has it across '%.100s'",
                                  sorted[i - 1]->name);
        }
    }
    wh_free(sorted);
    return status;
}

wherry_status wh_zip_read(const wherry_file *file, const wh_mapping *mapping, wh_zip *zip, wherry_error *error) {
    ending end = {0};
    wherry_status status = find_end(mapping, &end, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (end.offset > end.at || end.size != end.at - end.offset) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, wh_spot_byte(mapping->path, end.at),
                            "the zip file's directory is not where its end says");
    }
    if (end.size > file->limits.manifest_bytes || end.count > file->limits.values) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_spot_byte(mapping->path, end.at),
                            "the zip file's directory has %llu entries in %llu bytes, more than the limits allow",
                            (unsigned long long)end.count, (unsigned long long)end.size);
    }
    char *directory;
    status = wh_mapping_copy(mapping, end.offset, (size_t)end.size, &directory, error);
    if (status != WHERRY_OK) {
        return status;
    }
    zip->directory = end.offset;
    size_t at = 0;
    while (at < end.size && status == WHERRY_OK) {
        size_t used = 0;
        status = read_entry(mapping, zip, (const uint8_t *)directory + at, (size_t)end.size - at, end.offset + at,
                            &used, error);
        at += used;
    }
    wh_free(directory);
    if (status == WHERRY_OK && zip->count != end.count) {
        status = malformed(error, mapping, end.at, "the zip file's end counts other entries than its directory has,");
    }
    return status == WHERRY_OK ? check_apart(mapping, zip, error) : status;
}

void wh_zip_destroy(wh_zip *zip) {
    for (size_t i = 0; i < zip->count; i++) {
        wh_free(zip->entries[i].name);
    }
    wh_free(zip->entries);
}
