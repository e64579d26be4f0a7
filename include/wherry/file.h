/**
 * @file wherry/file.h  Checkpoint files: opened without loading them, and replaced only when the
 * new one is complete.
 *
 *     reading:  wherry_file_open("model.safetensors", NULL, &file, &error);
 *               state = wherry_file_state(file);
 *     writing:  wherry_file_write("model.safetensors", state, NULL, &error);
 *     receiving into a file: wherry_file_writer_create, a receive into wherry_file_writer_target,
 *     then wherry_file_writer_finish. docs/files.md has the whole example.
 *
 * These functions are in libwherry-file (`pkg-config wherry-file`), so that the core needs no JSON
 * library.
 *
 * An open file is mapped, not read. Its state is ready as soon as the header is checked; bytes come
 * from the disk when they are used. So nobody may write or truncate the file while it is open.
 * Replacing it by a rename, as this library does, is safe. Access to bytes that another process has
 * cut off raises SIGBUS; wherry_file_check tells beforehand.
 *
 * Functions block as long as the file system does. Several threads may use an open file at once.
 * One thread at a time may use a writer; any thread may use the memory of its target. Every error
 * names the file. If it is about a tensor, error.path is the tensor's path, and error.offset is the
 * byte of the file. All since 0.1.
 */
#ifndef WHERRY_FILE_H
#define WHERRY_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/expert.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * File formats; docs/files.md says what each can hold. The values never change; 3 and 4 are not
 * used.
 */
typedef enum wherry_file_format {
    /** Reading: by the content. Writing: by the name, as wherry_file_format_of does. */
    WHERRY_FILE_AUTO = 0,
    WHERRY_FILE_SAFETENSORS = 1, /**< One .safetensors file. */
    /** Several .safetensors files and their .safetensors.index.json. */
    WHERRY_FILE_SHARDED = 2,
    WHERRY_FILE_WHERRY = 5, /**< Wherry's own format, docs/file-format.md: any state. */
    WHERRY_FILE_BYTES = 6,  /**< Any file, as one tensor of its bytes. Used only on request. */
} wherry_file_format;

/** The name of a format, such as "safetensors"; static. "?" for an unknown value. Any thread. */
WHERRY_API const char *wherry_file_format_name(wherry_file_format format);

/**
 * The format that a file name stands for: .safetensors, .safetensors.index.json or .wherry.
 * @return WHERRY_FILE_AUTO for any other name. Any thread.
 */
WHERRY_API wherry_file_format wherry_file_format_of(const char *path);

/**
 * Checks if a format can hold a state. Every format preserves the shape, dtype and bytes of each
 * tensor. Wherry's own preserves everything. In the other formats, nested containers become one
 * dict whose keys are joined by dots, and `requires_grad` is lost.
 * @param state  its tensors need no memory: the state of an offer will do.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED with the path of the first value that the format cannot
 * hold, why, and what to do; WHERRY_INVALID_ARGUMENT, also for WHERRY_FILE_AUTO; WHERRY_NO_MEMORY.
 * Does not block. Any thread.
 */
WHERRY_API wherry_status wherry_file_accepts(wherry_file_format format, const wherry_value *state, wherry_error *error);

/** @name Reading. */
/** @{ */

/** An open file. Opaque. */
typedef struct wherry_file wherry_file;

/** Bits of wherry_file_open_options.flags. */
enum {
    /** Tensors may be written; changes stay in memory. Default: writing is a fault. */
    WHERRY_FILE_PRIVATE = 1,
    /** Read all bytes now and compare their digests, as wherry_file_verify does. */
    WHERRY_FILE_VERIFY = 2,
    WHERRY_FILE_OPEN_FLAGS = 3 /**< All of them. */
};

/** How to open a file. Fill it with wherry_file_open_options_init, then change what you need. */
typedef struct wherry_file_open_options {
    uint32_t struct_size;      /**< sizeof(wherry_file_open_options). */
    uint32_t flags;            /**< WHERRY_FILE_*. Default 0. */
    wherry_file_format format; /**< Refuse other formats. Default WHERRY_FILE_AUTO: accept all. */
    /** For the header; borrowed during the call. NULL: those of wherry_limits_init. */
    const wherry_limits *limits;
} wherry_file_open_options;

/** Fills in the defaults. */
WHERRY_API void wherry_file_open_options_init(wherry_file_open_options *options);

/**
 * Opens a file: reads and checks its header, and maps the rest. No byte of the header is trusted.
 * @param path     of the file; for shards, of the index. The shards must be in the folder of the
 * index.
 * @param options  NULL for the defaults.
 * @param file_p   owned by the caller: wherry_file_close.
 * @return WHERRY_OK; or
 *   - WHERRY_SYSTEM: it, or a shard, cannot be opened, read or mapped (error.errnum).
 *   - WHERRY_TRUNCATED: it is shorter than its header says; WHERRY_TRAILING_BYTES: it is longer.
 *   - WHERRY_MALFORMED: it is not in a known format, or its header breaks the rules of the format.
 *   - WHERRY_OUT_OF_BOUNDS: a tensor lies outside the file, overlaps another one, or does not have
 *     the size of its shape.
 *   - WHERRY_REPEATED_KEY: two tensors, or two fields of one, have the same name.
 *   - WHERRY_BAD_VERSION: this library does not read this version of the format.
 *   - WHERRY_LIMIT: the header exceeds the limits.
 *   - WHERRY_CORRUPT: bytes differ from what was written: of tensors, with WHERRY_FILE_VERIFY; or
 *     of a header that has a checksum.
 *   - WHERRY_UNSUPPORTED: a valid file that uses something Wherry does not support, such as a
 *     dtype; the message says what.
 *   - what wherry_manifest_decode returns, for Wherry's own format.
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_open(const char *path, const wherry_file_open_options *options,
                                          wherry_file **file_p, wherry_error *error);

/**
 * Closes a file. Copies of its state stay valid: the mapping ends with the last storage. file may
 * be NULL.
 */
WHERRY_API void wherry_file_close(wherry_file *file);

/**
 * The state in the file, borrowed. wherry_value_copy makes one that outlives the file, without
 * copying bytes.
 *
 * safetensors: a dict of tensors by name, in the order of the header; then, if the file has
 * metadata, "__metadata__", a dict of strings. Each tensor has its own storage, aligned as in the
 * file. Wherry's own format: the state that was written, including shared storages.
 */
WHERRY_API const wherry_value *wherry_file_state(const wherry_file *file);

/** Figures about an open file. */
typedef struct wherry_file_summary {
    wherry_file_format format; /**< Never WHERRY_FILE_AUTO. */
    uint32_t files;            /**< 1; for shards their number, without the index. */
    uint64_t tensors;          /**< Tensors in all files. */
    uint64_t file_bytes;       /**< Size of all files, including the index. */
    uint64_t header_bytes;     /**< The part of it that is not tensors. */
    /** Wherry's own: the rank that wrote it, as meshes number ranks; -1: unknown. */
    int64_t rank;
    bool has_digests; /**< wherry_file_verify has something to compare. */
} wherry_file_summary;

/** Fills in the figures. Does not block. */
WHERRY_API void wherry_file_summarize(const wherry_file *file, wherry_file_summary *summary_p);

/**
 * The path of one of the files, borrowed. 0 is the file that was opened; for shards that is the
 * index, and the shards follow.
 * @return NULL if there is no such file.
 */
WHERRY_API const char *wherry_file_path(const wherry_file *file, size_t index);

/**
 * Checks that the files were neither truncated nor written since they were opened. Call it before
 * using bytes of a file that was opened a while ago.
 * @return WHERRY_OK; WHERRY_TRUNCATED if one is shorter; WHERRY_CORRUPT if one was modified;
 * WHERRY_SYSTEM.
 */
WHERRY_API wherry_status wherry_file_check(const wherry_file *file, wherry_error *error);

/**
 * Reads all bytes and compares their digests. Only Wherry's own format has digests, and only if the
 * writer asked for them.
 * @return WHERRY_OK; WHERRY_CORRUPT with the path of a tensor whose bytes differ from what was
 * written; WHERRY_UNSUPPORTED if the file has no digests; what wherry_file_check returns;
 * WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_verify(const wherry_file *file, wherry_error *error);
/** @} */

/** @name Writing. */
/** @{ */

/** Bits of wherry_file_write_options.flags. */
enum {
    /** When finishing returns, the bytes and the new name are on the disk. */
    WHERRY_FILE_SYNC = 1,
    WHERRY_FILE_DIGESTS = 2, /**< Wherry's own format: add a digest per chunk. */
    /** A writer that is destroyed unfinished keeps its part, for WHERRY_FILE_RESUME. */
    WHERRY_FILE_KEEP_PART = 4,
    /** Continue a kept part if its header is the same: wherry_file_writer_resumed. */
    WHERRY_FILE_RESUME = 8,
    WHERRY_FILE_WRITE_FLAGS = 15 /**< All of them. */
};

/** How to write a file. Fill it with wherry_file_write_options_init, then change what you need. */
typedef struct wherry_file_write_options {
    uint32_t struct_size;      /**< sizeof(wherry_file_write_options). */
    uint32_t flags;            /**< WHERRY_FILE_SYNC and so on. Default 0. */
    wherry_file_format format; /**< Default WHERRY_FILE_AUTO: by the name. */
    uint32_t mode;             /**< Permissions of new files, before the umask. Default 0666. */

    /**
     * Shards: bytes of tensors per shard. A larger tensor gets a shard of its own. Default 5 GB (5
     * * 10^9).
     */
    uint64_t shard_bytes;

    /**
     * Wherry's own: the rank whose state this is, as meshes number ranks. It says which box of a
     * DTensor the file holds. Default -1: unknown.
     */
    int64_t rank;
} wherry_file_write_options;

/** Fills in the defaults. */
WHERRY_API void wherry_file_write_options_init(wherry_file_write_options *options);

/**
 * Writes a state that is in memory: wherry_file_writer_create, a copy, and
 * wherry_file_writer_finish in one call.
 * @param path     of the file; for shards, of the index. An existing file is replaced when the new
 * one is complete.
 * @param state    borrowed during the call; its tensors must be in host memory.
 * @param options  NULL for the defaults.
 * @return WHERRY_OK; what wherry_file_writer_create and wherry_file_writer_finish return;
 * WHERRY_UNSUPPORTED for a tensor on a device, or without memory. On failure an existing file is
 * unchanged.
 */
WHERRY_API wherry_status wherry_file_write(const char *path, const wherry_value *state,
                                           const wherry_file_write_options *options, wherry_error *error);

/** A file that is being written. Opaque. */
typedef struct wherry_file_writer wherry_file_writer;

/**
 * Starts a file for a state whose bytes come later: plans its layout, reserves disk space, and maps
 * it. The file is written as `.NAME.part` in the same folder. Only one process at a time can write
 * that part.
 * @param state     what the file will hold; borrowed during the call. Its tensors need no memory.
 * @param options   NULL for the defaults.
 * @param writer_p  owned by the caller: wherry_file_writer_destroy.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED as wherry_file_accepts; WHERRY_INVALID_ARGUMENT, also if
 * the name does not say the format; WHERRY_REFUSED if another process writes the same file;
 * WHERRY_SYSTEM if the disk is full or the file cannot be created; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_writer_create(const char *path, const wherry_value *state,
                                                   const wherry_file_write_options *options,
                                                   wherry_file_writer **writer_p, wherry_error *error);

/**
 * The state with its tensors in the file, borrowed: a target to receive into, or to copy to.
 * Containers, keys and plain values are those of the state. Tensors are on the cpu, contiguous, and
 * share no storages; in Wherry's own format, they keep their strides and shared storages. Unwritten
 * bytes are 0, except after WHERRY_FILE_RESUME.
 */
WHERRY_API const wherry_value *wherry_file_writer_target(const wherry_file_writer *writer);

/**
 * True if WHERRY_FILE_RESUME found a part to continue. The target's bytes are then those of an
 * earlier writer, and must be compared with the source.
 */
WHERRY_API bool wherry_file_writer_resumed(const wherry_file_writer *writer);

/**
 * Completes a file, once all bytes of its target are written: computes the digests, and renames the
 * file. Shards are renamed one by one, the index last. The target stays valid until the writer is
 * destroyed, but must not be written any more.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if it is finished already; WHERRY_SYSTEM,
 * WHERRY_NO_MEMORY: the name does not exist, or is the old file. Only if syncing the folder failed
 * is the new file in place. The writer can be finished again or destroyed.
 */
WHERRY_API wherry_status wherry_file_writer_finish(wherry_file_writer *writer, wherry_error *error);

/**
 * Ends writing. An unfinished file is removed, except with WHERRY_FILE_KEEP_PART. writer may be
 * NULL.
 */
WHERRY_API void wherry_file_writer_destroy(wherry_file_writer *writer);
/** @} */

#ifdef __cplusplus
}
#endif
#endif
