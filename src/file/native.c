/*
 * Wherry's own files: their layout, reading and writing. A reader copies the header and the
 * manifest into memory and checks them. It reads the digests only to verify the file, and only maps
 * the storages.
 */
#include "file/native.h"

#include <string.h>
#include <zlib.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "range/digest.h"
#include "range/space.h"
#include "state/prepare.h"

/* ---- the format ---- */

/** The numbers of a header. */
typedef struct native_header {
    uint32_t version;
    uint32_t flags;
    uint64_t manifest_bytes;
    uint64_t data_offset; /**< Offset of the first storage. */
    uint64_t file_bytes;
    uint64_t chunks; /**< Number of digests after the manifest: the number of chunks, or 0. */
} native_header;

/**
 * Rounds a number up to a multiple of the alignment. @return false if the result exceeds 63 bits.
 */
static bool align(uint64_t number, uint64_t alignment, uint64_t *result) {
    return wh_add(number, (alignment - number % alignment) % alignment, result);
}

/**
 * Adds a range per storage to a layout, and computes data_offset and file_bytes.
 * @param header  its fields flags, manifest_bytes and chunks must be set.
 * @return false if the sizes exceed 63 bits (*overflow_p becomes true), or if out of memory.
 */
static bool place_storages(const wherry_prepared *prepared, native_header *header, wh_layout *layout,
                           bool *overflow_p) {
    uint64_t end = WH_NATIVE_HEADER;
    *overflow_p = true;
    if (!wh_add(end, header->manifest_bytes, &end) || !wh_add_product(header->chunks, WHERRY_DIGEST_BYTES, &end) ||
        !align(end, WH_NATIVE_PAGE, &end)) {
        return false;
    }
    header->data_offset = end;
    for (size_t i = 0; i < prepared->storage_count; i++) {
        uint64_t nbytes = wherry_storage_nbytes(prepared->storages[i]);
        uint64_t begin;
        if (!align(end, nbytes >= WH_NATIVE_PAGE ? WH_NATIVE_PAGE : WH_NATIVE_LINE, &begin) ||
            !wh_add(begin, nbytes, &end)) {
            return false;
        }
        if (!wh_layout_add_range(layout, 0, begin, nbytes)) {
            *overflow_p = false;
            return false;
        }
    }
    header->file_bytes = end;
    *overflow_p = false;
    return true;
}

/** The checksum of a header and its manifest. */
static uint32_t checksum(const uint8_t bytes[WH_NATIVE_HEADER], const void *manifest, uint64_t size) {
    return (uint32_t)crc32_z(crc32_z(0, bytes, WH_NATIVE_SUMMED), manifest, size);
}

/** Encodes a header, and adds the checksum over the header and the manifest. */
static void store_header(const native_header *header, const void *manifest, uint8_t bytes[WH_NATIVE_HEADER]) {
    memset(bytes, 0, WH_NATIVE_HEADER);
    memcpy(bytes, WH_NATIVE_MAGIC, WH_NATIVE_MAGIC_BYTES);
    wh_store_be32(bytes + 8, header->version);
    wh_store_be32(bytes + 12, header->flags);
    wh_store_be64(bytes + 16, header->manifest_bytes);
    wh_store_be64(bytes + 24, header->data_offset);
    wh_store_be64(bytes + 32, header->file_bytes);
    wh_store_be64(bytes + 40, header->chunks);
    wh_store_be32(bytes + WH_NATIVE_SUMMED, checksum(bytes, manifest, header->manifest_bytes));
}

/**
 * True if a header and its manifest match their checksum, and the bytes after the checksum are
 * zero.
 */
static bool is_intact(const uint8_t bytes[WH_NATIVE_HEADER], const void *manifest, uint64_t size) {
    bool same = wh_load_be32(bytes + WH_NATIVE_SUMMED) == checksum(bytes, manifest, size);
    for (int i = WH_NATIVE_SUMMED + 4; i < WH_NATIVE_HEADER; i++) {
        same = same && bytes[i] == 0;
    }
    return same;
}

/** Decodes the numbers of a header. Does not check them. */
static native_header load_header(const uint8_t bytes[WH_NATIVE_HEADER]) {
    return (native_header){
        .version = wh_load_be32(bytes + 8),
        .flags = wh_load_be32(bytes + 12),
        .manifest_bytes = wh_load_be64(bytes + 16),
        .data_offset = wh_load_be64(bytes + 24),
        .file_bytes = wh_load_be64(bytes + 32),
        .chunks = wh_load_be64(bytes + 40),
    };
}

typedef struct digesting {
    const wh_layout *layout;
    const uint8_t *base;
    wh_digester *digester;
} digesting;

static int add_piece(void *context, const wh_piece *piece) {
    const digesting *d = context;
    const uint8_t *at = d->base + d->layout->ranges[piece->storage].offset + piece->offset;
    for (uint64_t i = 0; i < piece->count; i++) {
        wh_digester_add(d->digester, at + i * piece->stride, piece->length);
    }
    return 0;
}

/** Returns the digest of a chunk of a mapped file. */
static wherry_digest digest_of(const wherry_prepared *prepared, const wh_layout *layout, const uint8_t *base,
                               uint64_t chunk, wh_digester *digester) {
    digesting d = {layout, base, digester};
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    wh_digester_begin(digester);
    wh_space_visit(&prepared->space, begin, begin + length, add_piece, &d);
    return wh_digester_end(digester);
}

/* ---- opening ---- */

/** The header and the manifest of a file, and the positions of its storages. */
typedef struct front {
    native_header header;
    char *manifest;
    wherry_prepared *prepared; /**< The decoded manifest. Its storages have no memory. */
    wh_layout layout;          /**< The ranges of the storages. */
} front;

static void destroy_front(front *f) {
    wh_free(f->manifest);
    wherry_prepared_destroy(f->prepared);
    wh_layout_destroy(&f->layout);
}

static wherry_status check_header(const wherry_file *file, const wh_mapping *mapping, const native_header *header,
                                  wherry_error *error) {
    const char *path = mapping->path;
    if (header->version != WH_NATIVE_VERSION) {
        return wh_file_fail(error, WHERRY_BAD_VERSION, wh_spot_byte(path, 8),
                            "the file has version %u of the format; this library reads only version %d",
                            (unsigned)header->version, WH_NATIVE_VERSION);
    }
    if (header->flags & ~(uint32_t)WH_NATIVE_FLAGS) {
        return wh_file_fail(error, WHERRY_BAD_VERSION, wh_spot_byte(path, 12),
                            "the file has the flags 0x%x; this version of Wherry knows only 0x%x",
                            (unsigned)header->flags, (unsigned)WH_NATIVE_FLAGS);
    }
    if (header->manifest_bytes > file->limits.manifest_bytes) {
        return wh_file_fail(
            error, WHERRY_LIMIT, wh_spot_byte(path, 16), "the manifest has %llu bytes; the limit is %llu",
            (unsigned long long)header->manifest_bytes, (unsigned long long)file->limits.manifest_bytes);
    }
    if (header->file_bytes != mapping->size) {
        bool shorter = mapping->size < header->file_bytes;
        return wh_file_fail(error, shorter ? WHERRY_TRUNCATED : WHERRY_TRAILING_BYTES,
                            wh_spot_byte(path, shorter ? mapping->size : header->file_bytes),
                            "the file has %llu bytes, but had %llu when it was written; copy or download it again",
                            (unsigned long long)mapping->size, (unsigned long long)header->file_bytes);
    }
    if (header->data_offset > mapping->size || header->manifest_bytes > mapping->size - WH_NATIVE_HEADER) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, wh_spot_byte(path, 16),
                            "the header says that the manifest or the first storage is beyond the end of the file");
    }
    return WHERRY_OK;
}

/** Checks that the header agrees with the manifest. */
static wherry_status check_against_manifest(const wh_mapping *mapping, front *f, wherry_error *error) {
    native_header expected = f->header;
    wherry_prepared_summary figures;
    wherry_prepared_summarize(f->prepared, &figures);
    if (!(f->header.flags & WH_NATIVE_DIGESTS) && f->header.chunks) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 40),
                            "the header counts %llu digests, but its flags say that there are none",
                            (unsigned long long)f->header.chunks);
    }
    if (f->header.flags & WH_NATIVE_DIGESTS && f->header.chunks != figures.chunks) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 40),
                            "the file has %llu digests, but %llu chunks", (unsigned long long)f->header.chunks,
                            (unsigned long long)figures.chunks);
    }
    bool overflow;
    if (!place_storages(f->prepared, &expected, &f->layout, &overflow) && !overflow) {
        return wh_fail_memory(error, "the storages of a file");
    }
    if (overflow || expected.data_offset != f->header.data_offset || expected.file_bytes != f->header.file_bytes) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, wh_spot_byte(mapping->path, 24),
                            "the header and the manifest disagree about where the storages begin or end");
    }
    return WHERRY_OK;
}

static wherry_status read_front(const wherry_file *file, const wh_mapping *mapping, front *f, wherry_error *error) {
    uint8_t bytes[WH_NATIVE_HEADER];
    WH_TRY(wh_mapping_read(mapping, 0, bytes, sizeof(bytes), error));
    f->header = load_header(bytes);
    WH_TRY(check_header(file, mapping, &f->header, error));
    WH_TRY(wh_mapping_copy(mapping, WH_NATIVE_HEADER, f->header.manifest_bytes, &f->manifest, error));
    if (!is_intact(bytes, f->manifest, f->header.manifest_bytes)) {
        return wh_file_fail(error, WHERRY_CORRUPT, wh_spot_byte(mapping->path, WH_NATIVE_SUMMED),
                            "the header or the manifest is damaged; copy or download the file again");
    }
    wherry_status status =
        wherry_manifest_decode(f->manifest, f->header.manifest_bytes, &file->limits, &f->prepared, error);
    if (status != WHERRY_OK && error && error->offset != UINT64_MAX) {
        error->offset += WH_NATIVE_HEADER;
    }
    WH_TRY(status);
    return check_against_manifest(mapping, f, error);
}

/* ---- digests ---- */

/** Sets the path of the error to that of the first tensor in a storage. */
static void name_tensor(const wherry_prepared *prepared, size_t storage, wherry_error *error) {
    wherry_flat *flat;
    if (!error || wherry_flatten(wherry_prepared_state(prepared), &flat, NULL) != WHERRY_OK) {
        return;
    }
    size_t number = 0;
    for (size_t i = 0; i < wherry_flat_count(flat); i++) {
        const wherry_value *leaf = wherry_flat_leaf(flat, i);
        const wherry_sharded *sharded = wherry_sharded_get(leaf);
        size_t tensors = sharded ? sharded->shard_count : wherry_tensor_get(leaf) || wherry_dtensor_get(leaf) ? 1 : 0;
        bool here = false;
        for (size_t k = 0; k < tensors; k++) {
            here = here || prepared->tensor_storages[number + k] == storage;
        }
        number += tensors;
        char *text;
        if (here && wherry_path_format(wherry_flat_path(flat, i), &text, NULL) == WHERRY_OK) {
            wh_fail_path(error, text);
            wherry_free(text);
        }
        if (here) {
            break;
        }
    }
    wherry_flat_destroy(flat);
}

static int note_piece(void *context, const wh_piece *piece) {
    *(wh_piece *)context = *piece;
    return 1;
}

static wherry_status fail_chunk(const wh_mapping *mapping, const front *f, uint64_t chunk, wherry_error *error) {
    uint64_t begin;
    uint64_t length;
    wh_piece first = {0};
    wherry_prepared_chunk(f->prepared, chunk, &begin, &length);
    wh_space_visit(&f->prepared->space, begin, begin + length, note_piece, &first);
    wherry_status status = wh_file_fail(
        error, WHERRY_CORRUPT, wh_spot_byte(mapping->path, f->layout.ranges[first.storage].offset + first.offset),
        "chunk %llu, which starts in storage %zu, is damaged; copy or download the file again",
        (unsigned long long)chunk, first.storage);
    name_tensor(f->prepared, first.storage, error);
    return status;
}

static wherry_status verify(const wherry_file *file, wherry_error *error) {
    const wh_mapping *mapping = file->mappings[0];
    front f = {0};
    char *digests = NULL;
    wh_digester *digester = wh_digester_create();
    wherry_status status = digester ? read_front(file, mapping, &f, error) : wh_fail_memory(error, "digests");
    WH_THEN(status, wh_mapping_copy(mapping, WH_NATIVE_HEADER + f.header.manifest_bytes,
                                    (size_t)(f.header.chunks * WHERRY_DIGEST_BYTES), &digests, error));
    for (uint64_t i = 0; i < f.header.chunks && status == WHERRY_OK; i++) {
        wherry_digest digest = digest_of(f.prepared, &f.layout, mapping->base, i, digester);
        if (memcmp(digest.bytes, digests + i * WHERRY_DIGEST_BYTES, WHERRY_DIGEST_BYTES) != 0) {
            status = fail_chunk(mapping, &f, i, error);
        }
    }
    wh_free(digests);
    wh_digester_destroy(digester);
    destroy_front(&f);
    return status;
}

static wherry_status open_native(wherry_file *file, wherry_error *error) {
    wh_mapping *mapping = file->mappings[0];
    front f = {0};
    wherry_status status = read_front(file, mapping, &f, error);
    WH_THEN(status, wh_mapping_map(mapping, file->access, error));
    WH_THEN(status, wh_map_state(wherry_prepared_state(f.prepared), file->mappings, f.layout.ranges,
                                 f.layout.range_count, f.prepared->tensor_storages, &file->state, error));
    if (status == WHERRY_OK) {
        file->summary.tensors = f.prepared->tensor_count;
        file->summary.rank = f.prepared->rank;
        file->summary.header_bytes = f.header.data_offset;
        file->verify = f.header.flags & WH_NATIVE_DIGESTS ? verify : NULL;
    }
    destroy_front(&f);
    return status;
}

/* ---- writing ---- */

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
    native_header header = {.version = WH_NATIVE_VERSION, .manifest_bytes = size};
    if (flags & WHERRY_FILE_DIGESTS) {
        header.flags |= WH_NATIVE_DIGESTS;
        header.chunks = figures.chunks;
    }
    bool overflow;
    if (!place_storages(prepared, &header, layout, &overflow)) {
        return overflow ? wh_fail(error, WHERRY_UNSUPPORTED, "the file would take more than 2^63 bytes")
                        : wh_fail_memory(error, "the layout of a file");
    }
    uint8_t bytes[WH_NATIVE_HEADER];
    wh_string text = {0};
    store_header(&header, manifest, bytes);
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
    const uint8_t *head = (const uint8_t *)layout->headers[0].bytes;
    uint8_t *base = layout->files[0].mapping->base;
    native_header header = load_header(head);
    if (header.chunks == 0) {
        return WHERRY_OK;
    }
    wherry_prepared *prepared;
    WH_TRY(wherry_manifest_decode(head + WH_NATIVE_HEADER, header.manifest_bytes, NULL, &prepared, error));
    wh_digester *digester = wh_digester_create();
    uint8_t *digests = base + WH_NATIVE_HEADER + header.manifest_bytes;
    for (uint64_t i = 0; i < header.chunks && digester; i++) {
        wherry_digest digest = digest_of(prepared, layout, base, i, digester);
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
    .open = open_native,
    .accepts = accepts,
    .lay_out = lay_out,
    .seal = seal,
};
