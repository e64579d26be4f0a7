/* Reading Wherry's own files. Everything before the storages is read into memory and checked; the storages are only mapped. */
#include <string.h>

#include <wherry/value.h>

#include "base/alloc.h"
#include "base/error.h"
#include "file/file_fail.h"
#include "file/native.h"
#include "file/restate.h"
#include "state/prepare.h"

/** What a file begins with. */
typedef struct front {
    wh_native_header header;
    char *manifest;
    wherry_prepared *prepared; /**< Its storages have no memory. */
    wh_layout layout;          /**< The places of the storages. */
} front;

static void destroy_front(front *f) {
    wh_free(f->manifest);
    wherry_prepared_destroy(f->prepared);
    wh_layout_destroy(&f->layout);
}

static wherry_status check_header(const wherry_file *file, const wh_mapping *mapping, const wh_native_header *header,
                                  wherry_error *error) {
    const char *path = mapping->path;
    if (header->version != WH_NATIVE_VERSION) {
        return wh_file_fail(error, WHERRY_BAD_VERSION, wh_spot_byte(path, 8),
                            "is of version %u of Wherry's files, and this library reads %d", (unsigned)header->version,
                            WH_NATIVE_VERSION);
    }
    if (header->flags & ~(uint32_t)WH_NATIVE_FLAGS) {
        return wh_file_fail(error, WHERRY_BAD_VERSION, wh_spot_byte(path, 12),
                            "has flags 0x%x, which this version does not know", (unsigned)header->flags);
    }
    if (header->manifest_bytes > file->limits.manifest_bytes) {
        return wh_file_fail(
            error, WHERRY_LIMIT, wh_spot_byte(path, 16), "says that its manifest has %llu bytes; the limit is %llu",
            (unsigned long long)header->manifest_bytes, (unsigned long long)file->limits.manifest_bytes);
    }
    if (header->file_bytes != mapping->size) {
        bool shorter = mapping->size < header->file_bytes;
        return wh_file_fail(error, shorter ? WHERRY_TRUNCATED : WHERRY_TRAILING_BYTES,
                            wh_spot_byte(path, shorter ? mapping->size : header->file_bytes),
                            "has %llu bytes, and %llu when it was written; get it anew",
                            (unsigned long long)mapping->size, (unsigned long long)header->file_bytes);
    }
    if (header->data_offset > mapping->size || header->manifest_bytes > mapping->size - WH_NATIVE_HEADER) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, wh_spot_byte(path, 16), "its manifest goes beyond its end");
    }
    return WHERRY_OK;
}

/** What follows from the manifest must be what the header says. */
static wherry_status check_places(const wh_mapping *mapping, front *f, wherry_error *error) {
    wh_native_header expected = f->header;
    wherry_prepared_summary figures;
    wherry_prepared_summarize(f->prepared, &figures);
    if (f->header.chunks != (f->header.flags & WH_NATIVE_DIGESTS ? figures.chunks : 0)) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_byte(mapping->path, 40),
                            "has %llu digests for %llu chunks", (unsigned long long)f->header.chunks,
                            (unsigned long long)figures.chunks);
    }
    bool overflow;
    if (!wh_native_place(f->prepared, &expected, &f->layout, &overflow) && !overflow) {
        return wh_fail_memory(error, "the storages of a file");
    }
    if (overflow || expected.data_offset != f->header.data_offset || expected.file_bytes != f->header.file_bytes) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, wh_spot_byte(mapping->path, 24),
                            "the storages of its manifest take other bytes than its header says");
    }
    return WHERRY_OK;
}

static wherry_status read_front(const wherry_file *file, const wh_mapping *mapping, front *f, wherry_error *error) {
    uint8_t bytes[WH_NATIVE_HEADER];
    wherry_status status = wh_mapping_read(mapping, 0, bytes, sizeof(bytes), error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_native_load(bytes, &f->header);
    status = check_header(file, mapping, &f->header, error);
    if (status == WHERRY_OK) {
        status = wh_mapping_copy(mapping, WH_NATIVE_HEADER, f->header.manifest_bytes, &f->manifest, error);
    }
    if (status == WHERRY_OK && !wh_native_intact(bytes, f->manifest, f->header.manifest_bytes)) {
        status = wh_file_fail(error, WHERRY_CORRUPT, wh_spot_byte(mapping->path, WH_NATIVE_SUMMED),
                              "its header or its manifest is not what was written; get it anew");
    }
    if (status == WHERRY_OK) {
        status = wherry_manifest_decode(f->manifest, f->header.manifest_bytes, &file->limits, &f->prepared, error);
        if (status != WHERRY_OK && error && error->offset != UINT64_MAX) {
            error->offset += WH_NATIVE_HEADER;
        }
    }
    return status == WHERRY_OK ? check_places(mapping, f, error) : status;
}

/* ---- the state ---- */

typedef struct filling {
    const wherry_prepared *prepared;
    wherry_storage **storages;
} filling;

static void change(void *context, size_t number, wherry_tensor *tensor) {
    const filling *f = context;
    tensor->storage = f->storages[f->prepared->places[number]];
}

static wherry_status make_state(wherry_file *file, wh_mapping *mapping, const front *f, wherry_error *error) {
    size_t count = f->layout.place_count;
    filling fill = {f->prepared, wh_alloc_zeroed(count, sizeof(wherry_storage *))};
    wherry_status status = fill.storages ? WHERRY_OK : wh_fail_memory(error, "the storages of a file");
    for (size_t i = 0; i < count && status == WHERRY_OK; i++) {
        const wh_place *place = f->layout.places + i;
        status = wh_mapping_wrap(mapping, place->offset, place->nbytes, fill.storages + i, error);
    }
    if (status == WHERRY_OK) {
        status = wh_restate(wherry_prepared_state(f->prepared), change, &fill, &file->state, error);
    }
    for (size_t i = 0; i < count && fill.storages; i++) {
        wherry_storage_unref(fill.storages[i]);
    }
    wh_free(fill.storages);
    return status;
}

/* ---- digests ---- */

/** The path of a tensor over a storage: the first one. */
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
            here = here || prepared->places[number + k] == storage;
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

static int note_storage(void *context, const wh_piece *piece) {
    *(wh_piece *)context = *piece;
    return 1;
}

static wherry_status fail_chunk(const wh_mapping *mapping, const front *f, uint64_t chunk, wherry_error *error) {
    uint64_t begin;
    uint64_t length;
    wh_piece first = {0};
    wherry_prepared_chunk(f->prepared, chunk, &begin, &length);
    wh_space_visit(&f->prepared->space, begin, begin + length, note_storage, &first);
    wherry_status status = wh_file_fail(
        error, WHERRY_CORRUPT, wh_spot_byte(mapping->path, f->layout.places[first.storage].offset + first.offset),
        "chunk %llu, from storage %zu on, is not what was written; get it anew", (unsigned long long)chunk,
        first.storage);
    name_tensor(f->prepared, first.storage, error);
    return status;
}

static wherry_status verify(const wherry_file *file, wherry_error *error) {
    const wh_mapping *mapping = file->mappings[0];
    front f = {0};
    char *digests = NULL;
    wh_digester *digester = wh_digester_create();
    wherry_status status = digester ? read_front(file, mapping, &f, error) : wh_fail_memory(error, "digests");
    if (status == WHERRY_OK) {
        status = wh_mapping_copy(mapping, WH_NATIVE_HEADER + f.header.manifest_bytes,
                                 (size_t)(f.header.chunks * WH_DIGEST_BYTES), &digests, error);
    }
    for (uint64_t i = 0; i < f.header.chunks && status == WHERRY_OK; i++) {
        wh_digest digest = wh_native_digest(f.prepared, &f.layout, mapping->base, i, digester);
        if (memcmp(digest.bytes, digests + i * WH_DIGEST_BYTES, WH_DIGEST_BYTES) != 0) {
            status = fail_chunk(mapping, &f, i, error);
        }
    }
    wh_free(digests);
    wh_digester_destroy(digester);
    destroy_front(&f);
    return status;
}

wherry_status wh_native_open(wherry_file *file, wherry_error *error) {
    wh_mapping *mapping = file->mappings[0];
    front f = {0};
    wherry_status status = read_front(file, mapping, &f, error);
    if (status == WHERRY_OK) {
        status = wh_mapping_map(mapping, file->access, error);
    }
    if (status == WHERRY_OK) {
        status = make_state(file, mapping, &f, error);
    }
    if (status == WHERRY_OK) {
        file->summary.tensors = f.prepared->tensor_count;
        file->summary.rank = f.prepared->rank;
        file->summary.header_bytes = f.header.data_offset;
        file->verify = f.header.flags & WH_NATIVE_DIGESTS ? verify : NULL;
    }
    destroy_front(&f);
    return status;
}
