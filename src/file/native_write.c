/* Writing Wherry's own files. */
#include "file/native.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "state/prepare.h"

/** Creates the state that the file will contain. Its storages are on the cpu and have no memory. */
static wherry_status move_to_cpu(const wherry_prepared *prepared, wherry_value **state_p, wherry_error *error) {
    size_t count = prepared->storage_count;
    wherry_storage **storages = wh_alloc_zeroed(count, sizeof(wherry_storage *));
    wherry_status status = storages ? WHERRY_OK : wh_fail_memory(error, "the storages of a file");
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = wherry_storage_describe(wherry_storage_nbytes(prepared->storages[i]), wherry_device_cpu(),
                                         storages + i, error);
    }
    WH_THEN(status, wh_replace_storages(prepared->state, storages, prepared->tensor_storages, state_p, error));
    for (size_t i = 0; i < count && storages; i++) {
        wherry_storage_unref(storages[i]);
    }
    wh_free(storages);
    return status;
}

/**
 * Adds an extent of the storage at offset `begin` of the file to layout->covered. Adds one range
 * for the whole extent, including its gaps. If the outermost level has few steps that are far
 * apart, adds one range per step instead. @return false if out of memory.
 */
static bool cover_extent(wh_layout *layout, uint64_t begin, const wherry_extent *extent) {
    enum { APART = 1 << 16, RUNS_MAX = 4096 };
    bool apart = extent->level_count > 0 && extent->levels[0].stride >= APART && extent->levels[0].count <= RUNS_MAX;
    uint64_t count = apart ? extent->levels[0].count : 1;
    wherry_extent inner = {0, extent->length, apart ? extent->levels + 1 : extent->levels, extent->level_count - apart};
    uint64_t span = wh_extent_span(&inner);
    bool good = true;
    for (uint64_t i = 0; i < count && good; i++) {
        good =
            wh_layout_add_covered(layout, 0, begin + extent->offset + (apart ? i * extent->levels[0].stride : 0), span);
    }
    return good;
}

/** Fills layout->covered. @return false if out of memory. */
static bool cover(const wherry_prepared *prepared, wh_layout *layout) {
    /* This creates the list even if nothing is covered. */
    bool good = wh_layout_add_covered(layout, 0, 0, 0);
    for (size_t i = 0; i < layout->range_count && good; i++) {
        size_t count;
        const wherry_extent *extents = wherry_prepared_extents(prepared, i, &count);
        for (size_t k = 0; k < count && good; k++) {
            good = cover_extent(layout, layout->ranges[i].offset, extents + k);
        }
    }
    return good;
}

static wherry_status add_header(const wherry_prepared *prepared, uint32_t flags, const void *manifest, size_t size,
                                wh_layout *layout, wherry_error *error) {
    wherry_prepared_summary figures;
    wherry_prepared_summarize(prepared, &figures);
    wh_native_header header = {.version = WH_NATIVE_VERSION, .manifest_bytes = size};
    if (flags & WHERRY_FILE_DIGESTS) {
        header.flags |= WH_NATIVE_DIGESTS;
        header.chunks = figures.chunks;
    }
    bool overflow;
    if (!wh_native_place(prepared, &header, layout, &overflow)) {
        return overflow ? wh_fail(error, WHERRY_UNSUPPORTED, "the file would take more than 2^63 bytes")
                        : wh_fail_memory(error, "the layout of a file");
    }
    uint8_t bytes[WH_NATIVE_HEADER];
    wh_string text = {0};
    wh_native_store(&header, manifest, bytes);
    wh_string_append(&text, (const char *)bytes, sizeof(bytes));
    wh_string_append(&text, manifest, size);
    layout->files[0].size = header.file_bytes;
    layout->storage_of = wh_alloc_array(prepared->tensor_count, sizeof(*layout->storage_of));
    WH_TRY_ALLOC(wh_layout_add_header(layout, 0, 0, &text) && layout->storage_of && cover(prepared, layout), error,
                 "the header of a file");
    for (size_t i = 0; i < prepared->tensor_count; i++) {
        layout->storage_of[i] = prepared->tensor_storages[i];
    }
    return WHERRY_OK;
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    wherry_prepare_options how = wh_file_prepare_options();
    how.rank = options->rank;
    wherry_prepared *given = NULL;
    wherry_prepared *prepared = NULL;
    wherry_value *cpu = NULL;
    void *manifest = NULL;
    size_t size = 0;
    wherry_status status = wherry_prepare(state, &how, &given, error);
    WH_THEN(status, move_to_cpu(given, &cpu, error));
    WH_THEN(status, wherry_prepare(cpu, &how, &prepared, error));
    WH_THEN(status, wherry_manifest_encode(prepared, &manifest, &size, error));
    if (status == WHERRY_OK && !wh_layout_add_file(layout, layout->path)) {
        status = wh_fail_memory(error, "the layout of a file");
    }
    WH_THEN(status, add_header(prepared, options->flags, manifest, size, layout, error));
    wherry_free(manifest);
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(cpu);
    wherry_prepared_destroy(given);
    return status;
}

/** Writes the digest of each chunk after the manifest. */
static wherry_status seal(const wh_layout *layout, wherry_error *error) {
    const uint8_t *front = (const uint8_t *)layout->headers[0].bytes;
    uint8_t *base = layout->files[0].mapping->base;
    wh_native_header header = wh_native_load(front);
    if (header.chunks == 0) {
        return WHERRY_OK;
    }
    wherry_prepared *prepared;
    WH_TRY(wherry_manifest_decode(front + WH_NATIVE_HEADER, header.manifest_bytes, NULL, &prepared, error));
    wh_digester *digester = wh_digester_create();
    uint8_t *digests = base + WH_NATIVE_HEADER + header.manifest_bytes;
    for (uint64_t i = 0; i < header.chunks && digester; i++) {
        wherry_digest digest = wh_native_digest(prepared, layout, base, i, digester);
        memcpy(digests + i * WHERRY_DIGEST_BYTES, digest.bytes, WHERRY_DIGEST_BYTES);
    }
    wherry_status status = digester ? WHERRY_OK : wh_fail_memory(error, "digests");
    wh_digester_destroy(digester);
    wherry_prepared_destroy(prepared);
    return status;
}

static wherry_status accepts(const wherry_value *state, wherry_error *error) {
    wherry_prepared *prepared;
    wherry_status status = wherry_prepare(state, NULL, &prepared, error);
    if (status == WHERRY_OK) {
        wherry_prepared_destroy(prepared);
    }
    return status;
}

static bool matches(const uint8_t *head, size_t size) {
    return size >= WH_NATIVE_MAGIC_BYTES && memcmp(head, WH_NATIVE_MAGIC, WH_NATIVE_MAGIC_BYTES) == 0;
}

const wh_format wh_format_native = {
    .format = WHERRY_FILE_WHERRY,
    .name = "wherry",
    .suffix = ".wherry",
    .matches = matches,
    .open = wh_native_open,
    .accepts = accepts,
    .lay_out = lay_out,
    .seal = seal,
};
