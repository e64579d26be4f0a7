/* Several arrays in a zip file: entries NAME.npy, stored as they are, so that their elements can be mapped; those that are compressed are unpacked into memory. */
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fail.h"
#include "file/file_fail.h"
#include "file/formats.h"
#include "file/little.h"
#include "file/npy.h"
#include "file/zip.h"

#define ENDING ".npy"

enum { ENDING_BYTES = 4, ALIGNMENT = 64 };

/* ---- reading ---- */

typedef struct reading {
    wherry_file *file;
    wh_mapping *mapping;
    wh_mapping *memory; /**< Where compressed arrays are unpacked, one behind the other; empty where there are none. */
    uint64_t used;      /**< Bytes of it. */
} reading;

/** Where the elements of an array behind others may begin: its own header is a multiple of that. */
static bool align(uint64_t *at) {
    return wh_add(*at, (ALIGNMENT - *at % ALIGNMENT) % ALIGNMENT, at);
}

/** Reads an array where it lies, or where it is unpacked to. */
static wherry_status put_array(reading *r, const wh_zip_entry *entry, wherry_error *error) {
    wh_mapping *in = entry->deflated ? r->memory : r->mapping;
    uint64_t begin = entry->deflated ? r->used : entry->offset;
    wherry_status status = WHERRY_OK;
    wh_npy npy;
    if (entry->deflated) {
        r->used += entry->size;
        align(&r->used);
        status = wh_zip_unpack(r->mapping, entry, in->base + begin, error);
    }
    if (status == WHERRY_OK) {
        status = wh_npy_read(in, begin, entry->size, entry->name, &npy, error);
    }
    if (status == WHERRY_OK) {
        r->file->summary.header_bytes -= entry->deflated ? entry->packed : npy.data_bytes;
        status = wh_opened_put(in, r->file->state, entry->name, begin + npy.header_bytes, npy.data_bytes,
                               wh_npy_tensor(&npy), error);
    }
    return status;
}

static wherry_status add_array(reading *r, wh_zip_entry *entry, wherry_error *error) {
    size_t length = strlen(entry->name);
    wh_spot spot = {r->mapping->path, entry->name, length, entry->local};
    if (length < ENDING_BYTES || strcmp(entry->name + length - ENDING_BYTES, ENDING) != 0) {
        return wh_file_fail(error, WHERRY_UNSUPPORTED, spot,
                            "it is no " ENDING " array, which is all that Wherry reads of a zip file");
    }
    entry->name[length - ENDING_BYTES] = '\0';
    wherry_status status = put_array(r, entry, error);
    if (status == WHERRY_DUPLICATE_KEY) {
        spot.name_size -= ENDING_BYTES;
        status = wh_file_fail(error, WHERRY_REPEATED_KEY, spot, "the zip file has it twice");
    }
    return status;
}

/** Takes memory for what is compressed, perhaps nothing: as much as the limits allow, and half of what the machine has. */
static wherry_status take_memory(reading *r, const wh_zip *zip, wherry_error *error) {
    uint64_t total = 0;
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t most = wh_min(r->file->limits.total_bytes, machine / 2);
    bool fits = true;
    for (size_t i = 0; i < zip->count && fits; i++) {
        if (zip->entries[i].deflated) {
            fits = wh_add(total, zip->entries[i].size, &total) && align(&total) && total <= most;
        }
    }
    if (!fits) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_spot_file(r->mapping->path),
                            "its compressed arrays are unpacked into memory, and take more than %llu bytes; save it by "
                            "numpy.savez, which does not compress",
                            (unsigned long long)most);
    }
    return wh_mapping_memory(r->mapping->path, total, &r->memory, error);
}

/** What is compressed was compared when it was unpacked. */
static wherry_status verify(const wherry_file *file, wherry_error *error) {
    const wh_mapping *mapping = file->mappings[0];
    wh_zip zip = {0};
    wherry_status status = wh_zip_read(file, mapping, &zip, error);
    for (size_t i = 0; i < zip.count && status == WHERRY_OK; i++) {
        const wh_zip_entry *entry = zip.entries + i;
        uint32_t crc = entry->deflated ? entry->crc : (uint32_t)crc32_z(0, mapping->base + entry->offset, entry->size);
        if (crc != entry->crc) {
            wh_spot spot = {mapping->path, entry->name, strlen(entry->name) - ENDING_BYTES, entry->offset};
            status = wh_file_fail(error, WHERRY_CORRUPT, spot, "its checksum is %08x, and was %08x when it was written",
                                  (unsigned)crc, (unsigned)entry->crc);
        }
    }
    wh_zip_destroy(&zip);
    return status;
}

static wherry_status open_archive(wherry_file *file, wherry_error *error) {
    reading r = {.file = file, .mapping = file->mappings[0]};
    wh_zip zip = {0};
    wherry_status status = wh_zip_read(file, r.mapping, &zip, error);
    if (status == WHERRY_OK) {
        status = wh_mapping_map(r.mapping, file->access, error);
    }
    if (status == WHERRY_OK) {
        status = wherry_dict_create(&file->state, error);
    }
    if (status == WHERRY_OK) {
        status = take_memory(&r, &zip, error);
    }
    file->summary.header_bytes = r.mapping->size;
    for (size_t i = 0; r.memory && i < zip.count && status == WHERRY_OK; i++) {
        status = add_array(&r, zip.entries + i, error);
    }
    if (r.memory && status == WHERRY_OK) {
        status = wh_mapping_protect(r.memory, file->access, error);
    }
    file->summary.tensors = zip.count;
    file->verify = verify;
    wh_mapping_unref(r.memory); /* the tensors in it keep it */
    wh_zip_destroy(&zip);
    return status;
}

/* ---- writing ---- */

/** The fields that a local header and an entry of the directory have in common, from the version on. Sizes are in the extra field. */
static void append_common(wh_string *out, const wh_named *named, size_t extra) {
    enum { VERSION = 45, UTF8 = 0x800, FIRST_OF_1980 = 0x21 };
    wh_append_little(out, VERSION, 2);
    wh_append_little(out, UTF8, 2);
    wh_append_little(out, 0, 2); /* stored */
    wh_append_little(out, 0, 2);
    wh_append_little(out, FIRST_OF_1980, 2);
    wh_append_little(out, 0, 4); /* the checksum, when it is known */
    wh_append_little(out, UINT32_MAX, 4);
    wh_append_little(out, UINT32_MAX, 4);
    wh_append_little(out, named->size + ENDING_BYTES, 2);
    wh_append_little(out, extra, 2);
}

static void append_name(wh_string *out, const wh_named *named) {
    wh_string_append(out, named->name, named->size);
    wh_string_append(out, ENDING, ENDING_BYTES);
}

/** The header of an entry and of its array, such that the array begins at a multiple of 64. */
static void append_local(wh_string *out, const wh_named *named, uint64_t at, uint64_t size) {
    enum { EXTRA64 = 20, PAD = 4 };
    uint64_t begin = at + WH_ZIP_LOCAL_BYTES + named->size + ENDING_BYTES + EXTRA64 + PAD;
    size_t pad = (size_t)((ALIGNMENT - begin % ALIGNMENT) % ALIGNMENT);
    wh_append_little(out, WH_ZIP_LOCAL, 4);
    append_common(out, named, EXTRA64 + PAD + pad);
    append_name(out, named);
    wh_append_little(out, WH_ZIP_EXTRA64, 2);
    wh_append_little(out, EXTRA64 - 4, 2);
    wh_append_little(out, size, 8);
    wh_append_little(out, size, 8);
    wh_append_little(out, WH_ZIP_EXTRA_PAD, 2);
    wh_append_little(out, pad, 2);
    for (size_t i = 0; i < pad; i++) {
        wh_string_append(out, "", 1);
    }
}

static void append_central(wh_string *out, const wh_named *named, uint64_t local, uint64_t size) {
    enum { MADE_BY = 3 << 8 | 45, EXTRA64 = 28 };
    wh_append_little(out, WH_ZIP_CENTRAL, 4);
    wh_append_little(out, MADE_BY, 2);
    append_common(out, named, EXTRA64);
    wh_append_little(out, 0, 2);                       /* comment */
    wh_append_little(out, 0, 2);                       /* disk */
    wh_append_little(out, 0, 2);                       /* internal attributes */
    wh_append_little(out, UINT64_C(0100644) << 16, 4); /* a plain file */
    wh_append_little(out, UINT32_MAX, 4);
    append_name(out, named);
    wh_append_little(out, WH_ZIP_EXTRA64, 2);
    wh_append_little(out, EXTRA64 - 4, 2);
    wh_append_little(out, size, 8);
    wh_append_little(out, size, 8);
    wh_append_little(out, local, 8);
}

/** The records behind a directory of `size` bytes at `at`. */
static void append_end(wh_string *out, uint64_t count, uint64_t at, uint64_t size) {
    enum { VERSION = 45 };
    wh_append_little(out, WH_ZIP_END64, 4);
    wh_append_little(out, WH_ZIP_END64_BYTES - 12, 8);
    wh_append_little(out, VERSION, 2);
    wh_append_little(out, VERSION, 2);
    wh_append_little(out, 0, 8); /* disks */
    wh_append_little(out, count, 8);
    wh_append_little(out, count, 8);
    wh_append_little(out, size, 8);
    wh_append_little(out, at, 8);
    wh_append_little(out, WH_ZIP_LOCATOR, 4);
    wh_append_little(out, 0, 4);
    wh_append_little(out, at + size, 8);
    wh_append_little(out, 1, 4);
    wh_append_little(out, WH_ZIP_END, 4);
    wh_append_little(out, 0, 4); /* disks */
    wh_append_little(out, UINT16_MAX, 2);
    wh_append_little(out, UINT16_MAX, 2);
    wh_append_little(out, UINT32_MAX, 4);
    wh_append_little(out, UINT32_MAX, 4);
    wh_append_little(out, 0, 2); /* comment */
}

/** Adds an array at the end, and its entry to the directory. */
static wherry_status add_entry(const wh_names *names, size_t number, uint64_t *end, wh_string *central,
                               wh_layout *layout, wherry_error *error) {
    const wh_named *named = names->items + number;
    if (named->size > WH_ZIP_NAME_MAX - ENDING_BYTES) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "npz holds names of up to 65,531 bytes, and '%.100s...' is longer",
                       named->name);
    }
    wh_string npy = {0};
    wh_string block = {0};
    wh_npy_append(&npy, named->tensor);
    uint64_t nbytes = wh_dense_bytes(named->tensor);
    append_local(&block, named, *end, npy.size + nbytes);
    append_central(central, named, *end, npy.size + nbytes);
    wh_string_append(&block, npy.failed ? "" : npy.bytes, npy.failed ? 0 : npy.size);
    bool failed = npy.failed || central->failed;
    uint64_t data = *end + block.size;
    wh_free(npy.bytes);
    if (!wh_layout_add_block(layout, 0, *end, &block) || failed || !wh_layout_add_place(layout, 0, data, nbytes)) {
        return wh_fail_memory(error, "the layout of a file");
    }
    layout->columns[number] = !wh_tensor_is_dense(named->tensor, false);
    return wh_add(data, nbytes, end) ? WHERRY_OK
                                     : wh_fail(error, WHERRY_UNSUPPORTED, "the tensors take more than 2^63 bytes");
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    (void)options;
    wh_names names = {0};
    wh_string central = {0};
    uint64_t end = 0;
    wherry_status status = wh_names_of(state, &wh_npz_naming, &names, error);
    if (status == WHERRY_OK) {
        layout->columns = wh_alloc_zeroed(names.count, sizeof(*layout->columns));
        if (!layout->columns || !wh_layout_add_file(layout, layout->path)) {
            status = wh_fail_memory(error, "the layout of a file");
        }
    }
    for (size_t i = 0; i < names.count && status == WHERRY_OK; i++) {
        status = add_entry(&names, i, &end, &central, layout, error);
    }
    if (status == WHERRY_OK) {
        append_end(&central, names.count, end, central.size);
        layout->files[0].size = end + central.size;
        if (!wh_layout_add_block(layout, 0, end, &central)) {
            status = wh_fail_memory(error, "the layout of a file");
        }
    }
    wh_free(central.bytes);
    wh_names_destroy(&names);
    return status;
}

/** Fills in the checksums, which cover an array with its header. */
static wherry_status seal(const wh_layout *layout, wherry_error *error) {
    enum { LOCAL_CRC = 14, CENTRAL_CRC = 16 };
    (void)error;
    uint8_t *base = layout->files[0].mapping->base;
    uint8_t *central = base + layout->blocks[layout->block_count - 1].offset;
    for (size_t i = 0; i < layout->place_count; i++) {
        const wh_place *place = layout->places + i;
        uint8_t *local = base + layout->blocks[i].offset;
        uint8_t *begin = local + WH_ZIP_LOCAL_BYTES + wh_load_little(local + 26, 2) + wh_load_little(local + 28, 2);
        uint64_t size = (uint64_t)(base + place->offset - begin) + place->nbytes;
        uint64_t crc = crc32_z(0, begin, size);
        wh_store_little(local + LOCAL_CRC, crc, 4);
        wh_store_little(central + CENTRAL_CRC, crc, 4);
        central += WH_ZIP_CENTRAL_BYTES + wh_load_little(central + 28, 2) + wh_load_little(central + 30, 2);
    }
    return WHERRY_OK;
}

static wherry_status accepts(const wherry_value *state, wherry_error *error) {
    wh_names names = {0};
    wherry_status status = wh_names_of(state, &wh_npz_naming, &names, error);
    wh_names_destroy(&names);
    return status;
}

static bool matches(const uint8_t *head, size_t size) {
    return size >= 4 && (wh_load_little(head, 4) == WH_ZIP_LOCAL || wh_load_little(head, 4) == WH_ZIP_END ||
                         wh_load_little(head, 4) == WH_ZIP_END64);
}

const wh_format wh_format_npz = {
    .format = WHERRY_FILE_NPZ,
    .name = "npz",
    .ending = ".npz",
    .matches = matches,
    .open = open_archive,
    .accepts = accepts,
    .lay_out = lay_out,
    .seal = seal,
};
