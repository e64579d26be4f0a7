/**
 * @file wherry/file.h  Checkpoint files. A file is opened without loading it, and replaced only
 * when the new file is complete.
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
 * from the disk when they are used. So nobody may write to the file or truncate it while it is
 * open. Replacing it by a rename, as this library does, is safe. If another process truncates the
 * file, access to the missing bytes raises SIGBUS. Call wherry_file_check to detect such a change
 * before the access.
 *
 * The functions may block on the file system. Several threads may use an open file at the same
 * time. Only one thread at a time may use a writer, but any thread may use the memory of its
 * target. Every error names the file. If it is about a tensor, error.path is the tensor's path, and
 * error.offset is the offset in the file. Available since version 0.1.
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
 * File formats. docs/files.md says what each can hold. The values never change; 3 and 4 are not
 * used.
 */
typedef enum wherry_file_format {
    /**
     * Reading: detect the format from the content. Writing: choose it by the file name, as
     * wherry_file_format_of does.
     */
    WHERRY_FILE_AUTO = 0,
    WHERRY_FILE_SAFETENSORS = 1, /**< One .safetensors file. */
    /** Several .safetensors files and their .safetensors.index.json. */
    WHERRY_FILE_SHARDED = 2,
    WHERRY_FILE_WHERRY = 5, /**< Wherry's own format, which holds any state: docs/file-format.md. */
    WHERRY_FILE_BYTES = 6,  /**< Any file, read as one tensor of its bytes. Used only on request. */
} wherry_file_format;

/**
 * The name of a format, such as "safetensors"; "?" for an unknown value. The text is valid forever.
 * Any thread may call this.
 */
WHERRY_API const char *wherry_file_format_name(wherry_file_format format);

/**
 * The format for a file name that ends with .safetensors, .safetensors.index.json or .wherry. Any
 * thread may call this.
 * @return WHERRY_FILE_AUTO for any other name.
 */
WHERRY_API wherry_file_format wherry_file_format_of(const char *path);

/**
 * Checks whether a format can hold a state. Does not block. Any thread may call this. Every format
 * preserves the shape, dtype and bytes of each tensor. Wherry's own preserves everything. In the
 * other formats, nested containers become one dict whose keys are the paths with their steps joined
 * by dots, and `requires_grad` is lost.
 * @param state  the state. Its tensors need no memory, so the state of an offer can be checked too.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if the format cannot hold a value: the error has the path
 * of the first such value, the reason, and what to do; WHERRY_INVALID_ARGUMENT, also for
 * WHERRY_FILE_AUTO; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_accepts(wherry_file_format format, const wherry_value *state, wherry_error *error);

/** @name Reading. */
/** @{ */

/** An open file. Opaque. */
typedef struct wherry_file wherry_file;

/** Bits of wherry_file_open_options.flags. */
enum {
    /**
     * The program may write to tensors; the changes stay in memory. Without this flag, writing to a
     * tensor raises SIGSEGV.
     */
    WHERRY_FILE_PRIVATE = 1,
    /** If the file has digests, read all bytes now and compare the digests. */
    WHERRY_FILE_VERIFY = 2,
    WHERRY_FILE_OPEN_FLAGS = 3 /**< All flags. */
};

/**
 * Options of wherry_file_open. Initialize them with wherry_file_open_options_init, then change what
 * you need.
 */
typedef struct wherry_file_open_options {
    uint32_t struct_size; /**< sizeof(wherry_file_open_options). */
    uint32_t flags;       /**< WHERRY_FILE_*. Default 0. */
    /** The only format to accept. Default WHERRY_FILE_AUTO: accept all. */
    wherry_file_format format;
    /**
     * Limits for the header; borrowed during the call. Default NULL: those of wherry_limits_init.
     */
    const wherry_limits *limits;
} wherry_file_open_options;

/** Fills in the defaults. */
WHERRY_API void wherry_file_open_options_init(wherry_file_open_options *options);

/**
 * Opens a file: reads and checks its header, and maps the rest. Every byte of the header is
 * checked, because the file may come from an attacker.
 * @param path     the file, or the index of sharded files. The shards must be in the folder of the
 * index.
 * @param options  NULL for the defaults.
 * @param file_p   owned by the caller. Close it with wherry_file_close.
 * @return WHERRY_OK; or
 *   - WHERRY_SYSTEM: the file or a shard cannot be opened, read or mapped (see error.errnum).
 *   - WHERRY_TRUNCATED: the file is shorter than its header says; WHERRY_TRAILING_BYTES: it is
 *     longer.
 *   - WHERRY_MALFORMED: the file is not in a known format, or its header breaks the rules of the
 *     format.
 *   - WHERRY_OUT_OF_BOUNDS: a tensor lies outside the file, overlaps another one, or does not have
 *     the size of its shape.
 *   - WHERRY_REPEATED_KEY: two tensors, or two fields of one tensor, have the same name.
 *   - WHERRY_BAD_VERSION: this library does not read this version of the format.
 *   - WHERRY_LIMIT: the header exceeds the limits.
 *   - WHERRY_CORRUPT: the bytes do not match their checksum. This is checked for headers that have
 *     a checksum and, with WHERRY_FILE_VERIFY, for tensors.
 *   - WHERRY_UNSUPPORTED: the file is valid, but uses something that Wherry does not support, such
 *     as a dtype. The message says what it is.
 *   - for Wherry's own format, the errors of wherry_manifest_decode.
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_open(const char *path, const wherry_file_open_options *options,
                                          wherry_file **file_p, wherry_error *error);

/**
 * Closes a file. Copies of its state stay valid: the file stays mapped as long as a storage uses
 * it. file may be NULL.
 */
WHERRY_API void wherry_file_close(wherry_file *file);

/**
 * The state in the file, borrowed. wherry_value_copy makes a copy that outlives the file; it does
 * not copy the bytes.
 *
 * For safetensors, the state is a dict of tensors by name, in the order of the header. If the file
 * has metadata, a dict of strings follows under the key "__metadata__". Each tensor has its own
 * storage, aligned as in the file. For Wherry's own format, it is the state that was written,
 * including shared storages.
 */
WHERRY_API const wherry_value *wherry_file_state(const wherry_file *file);

/** Statistics of an open file. */
typedef struct wherry_file_summary {
    wherry_file_format format; /**< Never WHERRY_FILE_AUTO. */
    uint32_t files;            /**< 1, or the number of shards without the index. */
    uint64_t tensors;          /**< Number of tensors in all files. */
    uint64_t file_bytes;       /**< Total size of all files, including the index. */
    uint64_t header_bytes;     /**< file_bytes without the bytes of tensors. */
    /**
     * Wherry's own format: the rank that wrote the file, as meshes number it; -1 if unknown.
     */
    int64_t rank;
    bool has_digests; /**< The file has digests that wherry_file_verify can compare. */
} wherry_file_summary;

/** Fills in the statistics. Does not block. */
WHERRY_API void wherry_file_summarize(const wherry_file *file, wherry_file_summary *summary_p);

/**
 * The path of one of the files, borrowed. Index 0 is the file that was opened. For sharded files
 * that is the index file, and the shards follow.
 * @return NULL if there is no such file.
 */
WHERRY_API const char *wherry_file_path(const wherry_file *file, size_t index);

/**
 * Checks that nobody has truncated the files or written to them since they were opened. Call it
 * before using bytes of a file that was opened a while ago.
 * @return WHERRY_OK; WHERRY_TRUNCATED if a file is shorter now; WHERRY_CORRUPT if a file was
 * modified; WHERRY_SYSTEM.
 */
WHERRY_API wherry_status wherry_file_check(const wherry_file *file, wherry_error *error);

/**
 * Reads all bytes and compares their digests. Only Wherry's own format has digests, and only if the
 * writer asked for them.
 * @return WHERRY_OK; WHERRY_CORRUPT if bytes differ from what was written: the error has the path
 * of a tensor with such bytes; WHERRY_UNSUPPORTED if the file has no digests; the errors of
 * wherry_file_check; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_verify(const wherry_file *file, wherry_error *error);
/** @} */

/** @name Writing. */
/** @{ */

/** Bits of wherry_file_write_options.flags. */
enum {
    /** Sync: when wherry_file_writer_finish returns, the bytes and the new name are on the disk. */
    WHERRY_FILE_SYNC = 1,
    WHERRY_FILE_DIGESTS = 2, /**< Wherry's own format: add a digest per chunk. */
    /**
     * If a writer is destroyed before it is finished, keep its part file for WHERRY_FILE_RESUME.
     */
    WHERRY_FILE_KEEP_PART = 4,
    /**
     * Continue with a part file that was kept, also a shorter one, if its header is the same: see
     * wherry_file_writer_resumed. If there is none, continue with a copy of the existing file.
     */
    WHERRY_FILE_RESUME = 8,
    /**
     * Never replace an existing file: wherry_file_writer_create fails, except with
     * WHERRY_FILE_RESUME, and so does wherry_file_writer_finish, also if the file was created
     * meanwhile. The status is WHERRY_SYSTEM and error.errnum is EEXIST.
     */
    WHERRY_FILE_NEW = 16,
    WHERRY_FILE_WRITE_FLAGS = 31 /**< All flags. */
};

/**
 * Options for writing a file. Initialize them with wherry_file_write_options_init, then change what
 * you need.
 */
typedef struct wherry_file_write_options {
    uint32_t struct_size;      /**< sizeof(wherry_file_write_options). */
    uint32_t flags;            /**< WHERRY_FILE_SYNC and the flags after it. Default 0. */
    wherry_file_format format; /**< Default WHERRY_FILE_AUTO: the file name decides. */
    /**
     * Permissions of new files, before the umask. Default 0666. A file that replaces another one
     * gets its permissions.
     */
    uint32_t mode;

    /**
     * Sharded files: bytes of tensors per shard. A larger tensor gets a shard of its own. Default 5
     * GB (5 * 10^9).
     */
    uint64_t shard_bytes;

    /**
     * Wherry's own format: the rank that has this state, as meshes number it. It determines
     * which box of a DTensor the file holds. Default -1: unknown.
     */
    int64_t rank;
} wherry_file_write_options;

/** Fills in the defaults. */
WHERRY_API void wherry_file_write_options_init(wherry_file_write_options *options);

/**
 * Writes a state that is in memory. It calls wherry_file_writer_create, copies the bytes and calls
 * wherry_file_writer_finish.
 * @param path     the file, or the index of sharded files. An existing file is replaced when the
 * new one is complete.
 * @param state    borrowed during the call; its tensors must be in host memory.
 * @param options  NULL for the defaults.
 * @return WHERRY_OK; the errors of wherry_file_writer_create and wherry_file_writer_finish;
 * WHERRY_UNSUPPORTED if a tensor is on a device or has no memory. After a failure of
 * wherry_file_writer_finish, existing files are as that function describes. After any other
 * failure, they are unchanged.
 */
WHERRY_API wherry_status wherry_file_write(const char *path, const wherry_value *state,
                                           const wherry_file_write_options *options, wherry_error *error);

/** A file that is being written. Opaque. */
typedef struct wherry_file_writer wherry_file_writer;

/**
 * Starts to write a file for a state whose bytes will come later. It plans the layout, reserves
 * disk space and maps the file. Until it is finished, the file has the name `.NAME.part` in the
 * same folder. Only one process at a time can write this part file.
 * @param state     the state that the file will hold; borrowed during the call. Its tensors need no
 * memory.
 * @param options   NULL for the defaults.
 * @param writer_p  owned by the caller. Destroy it with wherry_file_writer_destroy.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED for the same reasons as wherry_file_accepts;
 * WHERRY_INVALID_ARGUMENT, also if the name does not determine the format; WHERRY_REFUSED if
 * another process writes the same file; WHERRY_SYSTEM if the disk is full or the file cannot be
 * created; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_writer_create(const char *path, const wherry_value *state,
                                                   const wherry_file_write_options *options,
                                                   wherry_file_writer **writer_p, wherry_error *error);

/**
 * A copy of the state whose tensors are in the file, borrowed. Receive into it, or copy bytes to
 * it. Containers, keys and plain values are those of the state. Tensors are on the cpu. In Wherry's
 * own format, they keep their strides and shared storages. In the other formats, they are
 * contiguous and share no storages. Unwritten bytes are 0, except after WHERRY_FILE_RESUME.
 */
WHERRY_API const wherry_value *wherry_file_writer_target(const wherry_file_writer *writer);

/**
 * True if WHERRY_FILE_RESUME found a part file to continue with. The target's bytes are then those
 * of an earlier writer, and must be compared with the source.
 */
WHERRY_API bool wherry_file_writer_resumed(const wherry_file_writer *writer);

/**
 * Completes a file. Call it when all bytes of the target are written. It computes the digests and
 * renames the file. Shards are renamed one by one, the index last. The target stays valid until the
 * writer is destroyed, but nobody may write to it any more.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the writer is already finished; WHERRY_SYSTEM;
 * WHERRY_NO_MEMORY. After a failure, every file that was not renamed yet is still the old one. If
 * only the sync of the folder failed, all new files are in place. The caller can call this function
 * again, or destroy the writer.
 */
WHERRY_API wherry_status wherry_file_writer_finish(wherry_file_writer *writer, wherry_error *error);

/**
 * Destroys a writer. If it is not finished, its part file is removed, except with
 * WHERRY_FILE_KEEP_PART. writer may be NULL.
 */
WHERRY_API void wherry_file_writer_destroy(wherry_file_writer *writer);
/** @} */

#ifdef __cplusplus
}
#endif
#endif
