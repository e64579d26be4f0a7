/**
 * @file wherry/file.h  Checkpoint files: opened without loading them, written beside and moved into place.
 *
 *     reading:   wherry_file_open("model.safetensors", NULL, &file, &error);  state = wherry_file_state(file);
 *     writing:   wherry_file_write("model.safetensors", state, NULL, &error);
 *     receiving straight into a file: wherry_file_writer_create, then a receive into wherry_file_writer_target, then
 *     wherry_file_writer_finish; docs/files.md has it in full.
 *
 * These functions are in a library of their own, libwherry-file (`pkg-config wherry-file`), so that the core needs no JSON library.
 *
 * An open file is mapped, not read: its state is ready as soon as its header is checked, and bytes come from the disk when they are used. So the
 * file must not be shortened or written while it is open; replacing it by a rename, as this library does, is fine. Whoever touches bytes of a file
 * that another process cut off gets SIGBUS from the system; wherry_file_check tells beforehand. Files in memory that nobody else can write are safe.
 *
 * Functions here block as long as the file system does. An open file may be used by several threads at once, a writer by one at a time, the memory of
 * its target by any. Every error names the file; where it is about a tensor, error.path is that tensor's, and error.offset the byte of the file. All
 * since 0.1.
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

/** The kinds of files. docs/files.md says what each can hold. The values never change; 3 and 4 are not used. */
typedef enum wherry_file_format {
    WHERRY_FILE_AUTO = 0, /**< Reading: told by the content. Writing: by the name, as wherry_file_format_of does. */
    WHERRY_FILE_SAFETENSORS = 1, /**< One .safetensors file. */
    WHERRY_FILE_SHARDED = 2,     /**< .safetensors files and their .safetensors.index.json. */
    WHERRY_FILE_WHERRY = 5,      /**< Wherry's own, docs/file-format.md: any state. */
    WHERRY_FILE_BYTES = 6, /**< Any file as it is: one tensor of bytes. Never guessed: only where it is asked for. */
} wherry_file_format;

/** The name of a format, such as "safetensors"; lives for ever; "?" for a value that is none. Any thread. */
WHERRY_API const char *wherry_file_format_name(wherry_file_format format);

/**
 * The format that a file name asks for: by .safetensors, .safetensors.index.json or .wherry at its end.
 * @return WHERRY_FILE_AUTO for any other name. Any thread.
 */
WHERRY_API wherry_file_format wherry_file_format_of(const char *path);

/**
 * Whether a state can be written in a format. Tensors come back from every format as they were, in shape, element type and bytes; from all but Wherry's own, nested
 * containers come back as one dict of names that are joined by dots, and `requires_grad` does not come back.
 * @param state  its tensors need no memory: one that a receive is offered will do.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED with the path of the first value that the format cannot hold, why, and the way out;
 * WHERRY_INVALID_ARGUMENT, also for WHERRY_FILE_AUTO; WHERRY_NO_MEMORY. Does not block. Any thread.
 */
WHERRY_API wherry_status wherry_file_accepts(wherry_file_format format, const wherry_value *state, wherry_error *error);

/** @name Reading. */
/** @{ */

/** An open file. Opaque. */
typedef struct wherry_file wherry_file;

/** Bits of wherry_file_open_options.flags. */
enum {
    WHERRY_FILE_PRIVATE =
        1, /**< The tensors may be written; what is written stays in memory. Default: writing to them is a fault. */
    WHERRY_FILE_VERIFY = 2,    /**< Read all bytes now and compare their digests, as wherry_file_verify does. */
    WHERRY_FILE_OPEN_FLAGS = 3 /**< All of them. */
};

/** How to open. Fill it by wherry_file_open_options_init, then change what you need. */
typedef struct wherry_file_open_options {
    uint32_t struct_size;      /**< sizeof(wherry_file_open_options). */
    uint32_t flags;            /**< WHERRY_FILE_*. Default 0. */
    wherry_file_format format; /**< The only one that is accepted. Default WHERRY_FILE_AUTO: all. */
    const wherry_limits
        *limits; /**< What a header may claim; borrowed during the call. Default NULL: those of wherry_limits_init. */
} wherry_file_open_options;

/** Fills the defaults. */
WHERRY_API void wherry_file_open_options_init(wherry_file_open_options *options);

/**
 * Opens a file: reads and checks its header, and maps the rest. Every byte of the header is taken for hostile.
 * @param path     of the file; of sharded ones that of the index, whose shards lie beside it.
 * @param options  NULL for the defaults.
 * @param file_p   belongs to the caller: wherry_file_close.
 * @return WHERRY_OK; or
 *   - WHERRY_SYSTEM: it, or a shard, cannot be opened, read or mapped (error.errnum).
 *   - WHERRY_TRUNCATED: it ends before what its header says; WHERRY_TRAILING_BYTES: it goes on behind that.
 *   - WHERRY_MALFORMED: it is no file of a known format, or its header is not as that format's has to be.
 *   - WHERRY_OUT_OF_BOUNDS: a tensor lies outside the file, across another, or does not have the bytes that its shape takes.
 *   - WHERRY_REPEATED_KEY: two tensors, or two fields of one, have the same name.
 *   - WHERRY_BAD_VERSION: a version of the format that this library does not read.
 *   - WHERRY_LIMIT: the header claims more than the limits allow.
 *   - WHERRY_CORRUPT: with WHERRY_FILE_VERIFY, or in a header that has a checksum of its own: bytes are not those that were written.
 *   - WHERRY_UNSUPPORTED: a good file, with something that Wherry has no notion of: an element type; the message says what.
 *   - what wherry_manifest_decode returns, for Wherry's own files.
 *   - WHERRY_INVALID_ARGUMENT, WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_open(const char *path, const wherry_file_open_options *options,
                                          wherry_file **file_p, wherry_error *error);

/** Closes it. Tensors of copies of its state stay valid: the mapping goes with the last storage. file may be NULL. */
WHERRY_API void wherry_file_close(wherry_file *file);

/**
 * The state in the file, borrowed; wherry_value_copy makes one that outlives the file, without copying bytes.
 *
 * safetensors: a dict of tensors by name, in the order of the header, and behind them, where the file has any, "__metadata__", a dict of
 * strings. The storage of each tensor is its own, in the mapping, and aligned only as the file has it. Wherry's own: the state
 * that was written, with its sharing.
 */
WHERRY_API const wherry_value *wherry_file_state(const wherry_file *file);

/** The figures of an open file. */
typedef struct wherry_file_summary {
    wherry_file_format format; /**< Never WHERRY_FILE_AUTO. */
    uint32_t files;            /**< 1; of sharded ones the shards, without the index. */
    uint64_t tensors;          /**< Tensors in them. */
    uint64_t file_bytes;       /**< Bytes of all files, the index included. */
    uint64_t header_bytes;     /**< Of these, what is not bytes of tensors. */
    int64_t rank;     /**< Wherry's own: whose part of each DTensor it holds, as meshes name ranks; -1: not said. */
    bool has_digests; /**< Whether wherry_file_verify has anything to compare. */
} wherry_file_summary;

/** Reads the figures. Does not block. */
WHERRY_API void wherry_file_summarize(const wherry_file *file, wherry_file_summary *summary_p);

/**
 * The path of one of the files, borrowed: 0 is the one that was opened; of sharded ones that is the index, and the shards stand behind it.
 * @return NULL where there is none of that number.
 */
WHERRY_API const char *wherry_file_path(const wherry_file *file, size_t index);

/**
 * Asks the system whether the files still are as long as they were, and were not written, since they were opened: to be called before bytes are used that may have gone.
 * @return WHERRY_OK; WHERRY_TRUNCATED where one is shorter; WHERRY_CORRUPT where it was changed; WHERRY_SYSTEM.
 */
WHERRY_API wherry_status wherry_file_check(const wherry_file *file, wherry_error *error);

/**
 * Reads all bytes and compares their digests: of Wherry's own files, if they have any. Other formats have none.
 * @return WHERRY_OK; WHERRY_CORRUPT with the path of a tensor whose bytes are not those that were written; WHERRY_UNSUPPORTED where the file has no
 * digests; what wherry_file_check returns; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_verify(const wherry_file *file, wherry_error *error);
/** @} */

/** @name Writing. */
/** @{ */

/** Bits of wherry_file_write_options.flags. */
enum {
    WHERRY_FILE_SYNC = 1,    /**< The bytes are on the disk, and the name in its folder, when finishing returns. */
    WHERRY_FILE_DIGESTS = 2, /**< Wherry's own: a digest a chunk. */
    WHERRY_FILE_KEEP_PART =
        4, /**< A writer that is destroyed before it is finished leaves what it has, for WHERRY_FILE_RESUME. */
    WHERRY_FILE_RESUME =
        8, /**< Go on with what KEEP_PART left, where it is of the same state: wherry_file_writer_resumed. */
    WHERRY_FILE_WRITE_FLAGS = 15 /**< All of them. */
};

/** How to write. Fill it by wherry_file_write_options_init, then change what you need. */
typedef struct wherry_file_write_options {
    uint32_t struct_size;      /**< sizeof(wherry_file_write_options). */
    uint32_t flags;            /**< WHERRY_FILE_SYNC and so on. Default 0. */
    wherry_file_format format; /**< Default WHERRY_FILE_AUTO: by the name. */
    uint32_t mode;             /**< Permissions of new files, before the umask. Default 0666. */
    uint64_t
        shard_bytes; /**< Sharded: bytes of tensors in a shard; a larger tensor has one of its own. Default 5 GB (5 * 10^9). */

    /** Wherry's own: the rank that the state is of, as meshes name it, so that it is known which box of a DTensor it holds. Default -1: not said. */
    int64_t rank;
} wherry_file_write_options;

/** Fills the defaults. */
WHERRY_API void wherry_file_write_options_init(wherry_file_write_options *options);

/**
 * Writes a state that is in memory: what wherry_file_writer_create, copying and wherry_file_writer_finish do.
 * @param path     of the file; of sharded ones that of the index. What had that name is replaced, when all is there.
 * @param state    borrowed during the call; its tensors must be in host memory.
 * @param options  NULL for the defaults.
 * @return WHERRY_OK; what wherry_file_writer_create and wherry_file_writer_finish return; WHERRY_UNSUPPORTED for a tensor in the memory of another
 * device, or without memory. On failure what had the name before is untouched.
 */
WHERRY_API wherry_status wherry_file_write(const char *path, const wherry_value *state,
                                           const wherry_file_write_options *options, wherry_error *error);

/** A file that is being written. Opaque. */
typedef struct wherry_file_writer wherry_file_writer;

/**
 * Begins a file for a state whose bytes are still to come: lays it out, takes the room for it on the disk, and maps it. It is written beside, as
 * `.NAME.part` in the same folder, which one process at a time can do.
 * @param state     what the file is to hold; borrowed during the call. Its tensors need no memory.
 * @param options   NULL for the defaults.
 * @param writer_p  belongs to the caller: wherry_file_writer_destroy.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED as wherry_file_accepts; WHERRY_INVALID_ARGUMENT, also for a name that asks for no format; WHERRY_REFUSED where
 * another process writes the same file; WHERRY_SYSTEM where there is no room on the disk, or the file cannot be made; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_file_writer_create(const char *path, const wherry_value *state,
                                                   const wherry_file_write_options *options,
                                                   wherry_file_writer **writer_p, wherry_error *error);

/**
 * The state with its tensors in the file, borrowed: a target to receive into, or to copy to. Containers, keys and other values are those of the state; tensors are
 * contiguous and apart (Wherry's own: as they were, sharing storages). All are on the cpu. Their bytes are 0 where nothing
 * was written, but after WHERRY_FILE_RESUME.
 */
WHERRY_API const wherry_value *wherry_file_writer_target(const wherry_file_writer *writer);

/** Whether WHERRY_FILE_RESUME found something to go on with: the bytes of the target are then what an earlier writer left, and still have to be compared. */
WHERRY_API bool wherry_file_writer_resumed(const wherry_file_writer *writer);

/**
 * Ends a file, when all bytes of its target are written: makes the digests that the format has, and moves the file to its name. Sharded ones are moved one by
 * one, the index last. The target stays valid until the writer is destroyed, and must not be written any more.
 * @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_NO_MEMORY: the name is not there, or is what it was before (or all is in place, and only its folder could not be brought to
 * the disk); the writer can be finished again, or destroyed;
 * WHERRY_INVALID_ARGUMENT where it is finished already.
 */
WHERRY_API wherry_status wherry_file_writer_finish(wherry_file_writer *writer, wherry_error *error);

/** Ends writing. What was not finished is removed, but with WHERRY_FILE_KEEP_PART. writer may be NULL. */
WHERRY_API void wherry_file_writer_destroy(wherry_file_writer *writer);
/** @} */

#ifdef __cplusplus
}
#endif
#endif
