/** @file wherry/tensor.h  Tensors: element types, devices, storages, views of storages, DTensor and ShardedTensor. */
#ifndef WHERRY_TENSOR_H
#define WHERRY_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The element types of tensors.
 */

/**
 * X(NAME, VALUE, TEXT, BITS, CLASS): every element type, in one place. TEXT is PyTorch's name for it. The values travel
 * on the wire and never change. BITS are those of one stored element: F4_E2M1FN_X2 holds two 4-bit numbers in 8 bits, and the
 * quantized kinds are stored as plain integers whose scale travels elsewhere.
 */
#define WHERRY_DTYPE_LIST(X)                                                                                           \
    X(BOOL, 0, "bool", 8, BOOL)                                                                                        \
    X(U8, 1, "uint8", 8, UNSIGNED)                                                                                     \
    X(I8, 2, "int8", 8, SIGNED)                                                                                        \
    X(U16, 3, "uint16", 16, UNSIGNED)                                                                                  \
    X(I16, 4, "int16", 16, SIGNED)                                                                                     \
    X(U32, 5, "uint32", 32, UNSIGNED)                                                                                  \
    X(I32, 6, "int32", 32, SIGNED)                                                                                     \
    X(U64, 7, "uint64", 64, UNSIGNED)                                                                                  \
    X(I64, 8, "int64", 64, SIGNED)                                                                                     \
    X(F16, 9, "float16", 16, FLOAT)                                                                                    \
    X(BF16, 10, "bfloat16", 16, FLOAT)                                                                                 \
    X(F32, 11, "float32", 32, FLOAT)                                                                                   \
    X(F64, 12, "float64", 64, FLOAT)                                                                                   \
    X(C32, 13, "complex32", 32, COMPLEX)                                                                               \
    X(C64, 14, "complex64", 64, COMPLEX)                                                                               \
    X(C128, 15, "complex128", 128, COMPLEX)                                                                            \
    X(F8_E4M3FN, 16, "float8_e4m3fn", 8, FLOAT)                                                                        \
    X(F8_E4M3FNUZ, 17, "float8_e4m3fnuz", 8, FLOAT)                                                                    \
    X(F8_E5M2, 18, "float8_e5m2", 8, FLOAT)                                                                            \
    X(F8_E5M2FNUZ, 19, "float8_e5m2fnuz", 8, FLOAT)                                                                    \
    X(F8_E8M0FNU, 20, "float8_e8m0fnu", 8, FLOAT)                                                                      \
    X(F4_E2M1FN_X2, 21, "float4_e2m1fn_x2", 8, PACKED)                                                                 \
    X(QI8, 22, "qint8", 8, QUANTIZED)                                                                                  \
    X(QU8, 23, "quint8", 8, QUANTIZED)                                                                                 \
    X(QI32, 24, "qint32", 32, QUANTIZED)                                                                               \
    X(QU4X2, 25, "quint4x2", 8, QUANTIZED)                                                                             \
    X(QU2X4, 26, "quint2x4", 8, QUANTIZED)                                                                             \
    X(BITS8, 27, "bits8", 8, BITS)                                                                                     \
    X(BITS16, 28, "bits16", 16, BITS)                                                                                  \
    X(BITS1X8, 29, "bits1x8", 8, BITS)                                                                                 \
    X(BITS2X4, 30, "bits2x4", 8, BITS)                                                                                 \
    X(BITS4X2, 31, "bits4x2", 8, BITS)                                                                                 \
    X(U1, 32, "uint1", 8, PACKED)                                                                                      \
    X(U2, 33, "uint2", 8, PACKED)                                                                                      \
    X(U3, 34, "uint3", 8, PACKED)                                                                                      \
    X(U4, 35, "uint4", 8, PACKED)                                                                                      \
    X(U5, 36, "uint5", 8, PACKED)                                                                                      \
    X(U6, 37, "uint6", 8, PACKED)                                                                                      \
    X(U7, 38, "uint7", 8, PACKED)                                                                                      \
    X(I1, 39, "int1", 8, PACKED)                                                                                       \
    X(I2, 40, "int2", 8, PACKED)                                                                                       \
    X(I3, 41, "int3", 8, PACKED)                                                                                       \
    X(I4, 42, "int4", 8, PACKED)                                                                                       \
    X(I5, 43, "int5", 8, PACKED)                                                                                       \
    X(I6, 44, "int6", 8, PACKED)                                                                                       \
    X(I7, 45, "int7", 8, PACKED)

/** An element type. Since 0.1. */
typedef enum wherry_dtype {
#define WHERRY_X(name, value, text, bits, class_) WHERRY_##name = (value),
    WHERRY_DTYPE_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_dtype;

/** What the bits of an element mean. Since 0.1. */
typedef enum wherry_dtype_class {
    WHERRY_CLASS_BOOL,
    WHERRY_CLASS_UNSIGNED,
    WHERRY_CLASS_SIGNED,
    WHERRY_CLASS_FLOAT,
    WHERRY_CLASS_COMPLEX,
    WHERRY_CLASS_QUANTIZED, /**< Integers with a scale that is kept elsewhere. */
    WHERRY_CLASS_PACKED,    /**< Fewer than 8 bits, kept in bytes. */
    WHERRY_CLASS_BITS,      /**< Bits without a meaning. */
} wherry_dtype_class;

/** One row of the table of element types. Since 0.1. */
typedef struct wherry_dtype_info {
    const char *name;          /**< PyTorch's name, such as "bfloat16". Lives for ever. */
    uint32_t bits;             /**< Bits of one stored element. */
    uint32_t bytes;            /**< bits / 8: 1 to 16. */
    wherry_dtype_class class_; /**< What the bits mean. */
} wherry_dtype_info;

/** The row of dtype, or NULL for a value that is not in the list. Any thread. Since 0.1. */
WHERRY_API const wherry_dtype_info *wherry_dtype_describe(wherry_dtype dtype);

/**
 * Finds an element type by PyTorch's name, "bfloat16" or "torch.bfloat16".
 * @return the value of the wherry_dtype, or -1 where the name is unknown. Any thread. Since 0.1.
 */
WHERRY_API int wherry_dtype_find(const char *name);

/*
 * The kinds of memory that a storage may live in.
 */

/**
 * X(NAME, VALUE, TEXT): every kind of device that a state may name. The values travel on the wire and never change. This
 * version reads and writes host memory (CPU) and, where there is a driver, that of CUDA devices; the others are carried as a name.
 */
#define WHERRY_DEVICE_LIST(X)                                                                                          \
    X(CPU, 0, "cpu")                                                                                                   \
    X(CUDA, 1, "cuda")                                                                                                 \
    X(XPU, 2, "xpu")                                                                                                   \
    X(HIP, 3, "hip")                                                                                                   \
    X(MPS, 4, "mps")                                                                                                   \
    X(HPU, 5, "hpu")                                                                                                   \
    X(XLA, 6, "xla")                                                                                                   \
    X(MTIA, 7, "mtia")                                                                                                 \
    X(NPU, 8, "npu")                                                                                                   \
    X(META, 9, "meta")                                                                                                 \
    X(PRIVATE, 10, "privateuseone")

/** A kind of device. Since 0.1. */
typedef enum wherry_device_kind {
#define WHERRY_X(name, value, text) WHERRY_DEVICE_##name = (value),
    WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_device_kind;

/** One device: its kind and its number, -1 where none is said ("cuda" rather than "cuda:0"). Since 0.1. */
typedef struct wherry_device {
    wherry_device_kind kind; /**< WHERRY_DEVICE_CPU and so on. */
    int32_t index;           /**< -1: not said. */
} wherry_device;

/** Bytes that the longest text of a device needs, its final zero included. */
#define WHERRY_DEVICE_TEXT_MAX 32

/** The host's memory: {WHERRY_DEVICE_CPU, -1}. Any thread. Since 0.1. */
WHERRY_API wherry_device wherry_device_cpu(void);

/** The text of a kind, such as "cuda"; lives for ever; "?" for a value that is not in the list. Any thread. Since 0.1. */
WHERRY_API const char *wherry_device_kind_text(wherry_device_kind kind);

/**
 * Writes "cpu", "cuda:1" and the like into text.
 * @param text  receives at most WHERRY_DEVICE_TEXT_MAX bytes.
 * @return text. Any thread. Since 0.1.
 */
WHERRY_API char *wherry_device_text(wherry_device device, char text[WHERRY_DEVICE_TEXT_MAX]);

/**
 * Reads "cpu", "cuda:1" and the like.
 * @param text      zero-terminated; borrowed.
 * @param device_p  the result.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for any other text, with the kinds that are known in the message. Any
 * thread. Since 0.1.
 */
WHERRY_API wherry_status wherry_device_parse(const char *text, wherry_device *device_p, wherry_error *error);

/*
 * Runs of memory that tensors are views of.
 *
 * A storage is a pointer, a number of bytes and a device, counted by references: every tensor over it holds one, and its
 * creator holds one. When the last is given back, memory that the library allocated is freed and memory that the caller
 * wrapped is handed back by the release function. Counting is thread-safe; the bytes are the caller's business.
 */

/** A run of memory. Opaque. Since 0.1. */
typedef struct wherry_storage wherry_storage;

/**
 * Told once, when the last reference to a wrapped storage is gone, from whichever thread gave it back. It must not call
 * back into the library.
 */
typedef void (*wherry_release_fn)(void *context, void *data);

/**
 * Wraps memory that the caller owns.
 * @param data       the first byte; may be NULL only where nbytes is 0. It must stay valid until `release` is called.
 * @param nbytes     its length.
 * @param device     where it lies. A CUDA device's number may be -1: it is found from the address.
 * @param release    called when the storage is no longer used; NULL if the caller keeps the memory longer than that.
 * @param context    passed to release.
 * @param storage_p  the storage, with one reference that the caller gives back by wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also for an address of no CUDA device where there is a driver that can tell; WHERRY_NO_MEMORY. On failure `release` is not called and the memory is
 * still the caller's. Does not block. Any thread. Since 0.1.
 */
WHERRY_API wherry_status wherry_storage_wrap(void *data, uint64_t nbytes, wherry_device device,
                                             wherry_release_fn release, void *context, wherry_storage **storage_p,
                                             wherry_error *error);

/**
 * Allocates a storage, zeroed. Host memory from 2 MiB on is aligned to 2 MiB and asks for huge pages; pages
 * are taken from the system only when they are first touched. Memory of a CUDA device is plain memory of its primary context.
 * @param device     its kind is WHERRY_DEVICE_CPU, or WHERRY_DEVICE_CUDA where there is a driver; number -1 is the first device.
 * @param storage_p  the storage, with one reference that the caller gives back by wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED for another kind of device, or without a driver; WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes, or a
 * device that there is not; WHERRY_NO_MEMORY; WHERRY_SYSTEM where the device fails. Host memory: does not block. Any thread. Since 0.1.
 */
WHERRY_API wherry_status wherry_storage_allocate(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/**
 * Makes a storage that has a size and a device but no memory: what a received manifest holds before it is planned.
 * @param storage_p  the storage, with one reference that the caller gives back by wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes; WHERRY_NO_MEMORY. Does not block. Any thread. Since
 * 0.1.
 */
WHERRY_API wherry_status wherry_storage_describe(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/** Takes one more reference. @return storage. Any thread. Since 0.1. */
WHERRY_API wherry_storage *wherry_storage_ref(wherry_storage *storage);

/** Gives one reference back; the last one releases the memory. storage may be NULL. Any thread. Since 0.1. */
WHERRY_API void wherry_storage_unref(wherry_storage *storage);

/** The first byte; NULL where the storage has no memory or no bytes. Any thread. Since 0.1. */
WHERRY_API void *wherry_storage_data(const wherry_storage *storage);

/** The number of bytes. Any thread. Since 0.1. */
WHERRY_API uint64_t wherry_storage_nbytes(const wherry_storage *storage);

/** Where the memory lies, or is to lie. Any thread. Since 0.1. */
WHERRY_API wherry_device wherry_storage_device(const wherry_storage *storage);

/**
 * Provides memory for a storage that is received anew.
 * @param storage_p  a storage of at least nbytes on that device, whose reference the library takes over.
 * @return WHERRY_OK, or a status that ends the planning and is handed on.
 */
typedef wherry_status (*wherry_allocate_fn)(void *context, uint64_t nbytes, wherry_device device,
                                            wherry_storage **storage_p);

/*
 * Tensors: strided views of storages.
 *
 * No function here blocks; the rules of wherry/value.h for threads and ownership hold. All since 0.1.
 */

/** The most dimensions that a tensor may have. */
#define WHERRY_NDIM_MAX 64

/** Bits of wherry_tensor.flags. They travel on the wire and never change. */
enum {
    WHERRY_TENSOR_REQUIRES_GRAD = 1,
    WHERRY_TENSOR_CONJ = 2, /**< The elements are the conjugates of what is stored. */
    WHERRY_TENSOR_NEG = 4,  /**< The elements are the negatives of what is stored. */
    WHERRY_TENSOR_FLAGS = 7 /**< All of them. */
};

/**
 * A view of a storage: element (i, j, ...) lies (offset + i * strides[0] + j * strides[1] + ...) elements after the
 * storage's first byte. Strides are never negative; they may be 0 (an expanded tensor) and elements may overlap.
 */
typedef struct wherry_tensor {
    wherry_storage *storage; /**< What it is a view of; a tensor that was created has a reference of its own. */
    wherry_dtype dtype;      /**< Of its elements. */
    uint32_t flags;          /**< WHERRY_TENSOR_* */
    uint32_t ndim;           /**< 0 (a scalar) to WHERRY_NDIM_MAX. */
    int64_t offset;          /**< In elements. */
    const int64_t *shape;    /**< ndim sizes; may be NULL where ndim is 0. */
    const int64_t *strides; /**< ndim strides, in elements; NULL in wherry_tensor_create: contiguous, the last dimension
                                 fastest. */
} wherry_tensor;

/**
 * Makes a tensor.
 * @param tensor   borrowed; its arrays are copied, and a reference to its storage is taken.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for an unknown dtype or flag, too many dimensions, a
 * negative size, stride or offset, or an element outside the storage (a tensor without elements needs no bytes).
 */
WHERRY_API wherry_status wherry_tensor_create(const wherry_tensor *tensor, wherry_value **value_p, wherry_error *error);

/** The view that a TENSOR is, borrowed, its strides filled; NULL for any other kind. */
WHERRY_API const wherry_tensor *wherry_tensor_get(const wherry_value *value);

/** The number of elements. */
WHERRY_API uint64_t wherry_tensor_count(const wherry_tensor *tensor);

/**
 * The whole storage of a tensor as a one-dimensional tensor of another dtype, sharing that storage: "cast to bytes" with
 * WHERRY_U8. Offset and strides of the tensor do not matter.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where the storage is not a whole number of elements.
 */
WHERRY_API wherry_status wherry_tensor_cast(const wherry_tensor *tensor, wherry_dtype dtype, wherry_value **value_p,
                                            wherry_error *error);

/*
 * DTensor: a local tensor that is a part of a global one, spread over a mesh of ranks.
 *
 * No function here blocks; the rules of wherry/value.h for threads and ownership hold. All since 0.1.
 */

/** A mesh of ranks, counted by references, shared by the DTensors over it. Opaque and never changed. */
typedef struct wherry_mesh wherry_mesh;

/** What a mesh is made of. */
typedef struct wherry_mesh_info {
    wherry_device_kind device;    /**< The kind of device that the ranks compute on. */
    uint32_t ndim;                /**< 1 to WHERRY_NDIM_MAX. */
    const int64_t *shape;         /**< ndim sizes, each at least 1. */
    const int64_t *ranks;         /**< The product of the sizes of them, the last dimension fastest; each >= 0. */
    const char *const *dim_names; /**< ndim names, UTF-8; or NULL where the dimensions have none. */
} wherry_mesh_info;

/**
 * Makes a mesh.
 * @param info    borrowed; all of it is copied.
 * @param mesh_p  the mesh, with one reference that the caller gives back by wherry_mesh_unref.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a size or a rank is out of its range.
 */
WHERRY_API wherry_status wherry_mesh_create(const wherry_mesh_info *info, wherry_mesh **mesh_p, wherry_error *error);

/** Takes one more reference. @return mesh. Any thread. */
WHERRY_API wherry_mesh *wherry_mesh_ref(wherry_mesh *mesh);

/** Gives one reference back. mesh may be NULL. Any thread. */
WHERRY_API void wherry_mesh_unref(wherry_mesh *mesh);

/** What the mesh is made of, borrowed. */
WHERRY_API const wherry_mesh_info *wherry_mesh_get(const wherry_mesh *mesh);

/** How a tensor lies over one dimension of a mesh. The values travel on the wire and never change. */
typedef enum wherry_placement_kind {
    WHERRY_REPLICATE = 0,     /**< Every rank has all of it. */
    WHERRY_SHARD = 1,         /**< Cut along `dim` into equal pieces, the last ones smaller or empty. */
    WHERRY_STRIDED_SHARD = 2, /**< Cut along `dim` into split_factor times as many pieces, dealt out in turn. */
    WHERRY_PARTIAL = 3,       /**< Every rank has a summand of it. */
} wherry_placement_kind;

/** One placement. */
typedef struct wherry_placement {
    wherry_placement_kind kind; /**< Which of the members below are used. */
    uint32_t dim;               /**< SHARD and STRIDED_SHARD: the dimension of the tensor. Else 0. */
    int64_t split_factor;       /**< STRIDED_SHARD: at least 1. Else 0. */
    const char *reduce_op;      /**< PARTIAL: "sum", "avg" and the like, UTF-8. Else NULL. */
} wherry_placement;

/** What a DTensor is made of. */
typedef struct wherry_dtensor {
    wherry_value *local;                /**< A value of kind TENSOR: this rank's part. */
    wherry_mesh *mesh;                  /**< The ranks. */
    const wherry_placement *placements; /**< One for each dimension of the mesh. */
    wherry_dtype dtype;                 /**< Of the global tensor; the local one has the same. */
    uint32_t flags;                     /**< WHERRY_TENSOR_REQUIRES_GRAD or 0, of the DTensor itself. */
    uint32_t ndim;                      /**< Dimensions of the global tensor; the local one has as many. */
    const int64_t *shape;               /**< ndim global sizes. */
    const int64_t *strides;             /**< ndim global strides. */
} wherry_dtensor;

/**
 * Makes a DTensor.
 * @param dtensor  borrowed. `local` is taken over on success; the arrays are copied; a reference to the mesh is taken.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where local is not a TENSOR of that dtype and number of
 * dimensions or belongs to a container, or a placement names a dimension that is not there.
 */
WHERRY_API wherry_status wherry_dtensor_create(const wherry_dtensor *dtensor, wherry_value **value_p,
                                               wherry_error *error);

/** What a DTENSOR is made of, borrowed; NULL for any other kind. */
WHERRY_API const wherry_dtensor *wherry_dtensor_get(const wherry_value *value);

/*
 * ShardedTensor: local shards, each a box of a global tensor.
 *
 * No function here blocks; the rules of wherry/value.h for threads and ownership hold. All since 0.1.
 */

/** Where a shard lives: PyTorch's "rank:3/cuda:1". */
typedef struct wherry_shard_place {
    int64_t rank;         /**< -1 where none is said. */
    wherry_device device; /**< Of that rank. */
} wherry_shard_place;

/** The box that a shard is, and where it lives. */
typedef struct wherry_shard_info {
    const int64_t *offsets;   /**< The box's first element, one number for each dimension of the global tensor. */
    const int64_t *sizes;     /**< The box's sizes. */
    wherry_shard_place place; /**< Who holds it. */
} wherry_shard_info;

/** A shard that this rank holds. */
typedef struct wherry_shard {
    wherry_value *tensor;   /**< A value of kind TENSOR whose shape is info.sizes. */
    wherry_shard_info info; /**< Which box it is. */
} wherry_shard;

/** How the shards were cut. The values travel on the wire and never change. */
typedef enum wherry_sharding_kind {
    WHERRY_SHARDING_NONE = 0,       /**< Not said. */
    WHERRY_SHARDING_CHUNK = 1,      /**< Along one dimension, a piece for each place. */
    WHERRY_SHARDING_ENUMERABLE = 2, /**< A list of boxes. */
} wherry_sharding_kind;

/** The sharding specification. */
typedef struct wherry_sharding {
    wherry_sharding_kind kind;        /**< Which of the members below are used. */
    int64_t dim;                      /**< CHUNK: the dimension. Else 0. */
    uint32_t count;                   /**< CHUNK: how many places. ENUMERABLE: how many boxes. */
    const wherry_shard_place *places; /**< CHUNK. Else NULL. */
    const wherry_shard_info *boxes;   /**< ENUMERABLE. Else NULL. */
} wherry_sharding;

/** PyTorch's memory formats. The values travel on the wire and never change. */
typedef enum wherry_memory_format {
    WHERRY_FORMAT_CONTIGUOUS = 0,
    WHERRY_FORMAT_CHANNELS_LAST = 1,
    WHERRY_FORMAT_CHANNELS_LAST_3D = 2,
    WHERRY_FORMAT_PRESERVE = 3,
} wherry_memory_format;

/** What a ShardedTensor is made of. The layout of its tensor properties is always strided. */
typedef struct wherry_sharded {
    wherry_dtype dtype;              /**< Of the global tensor, and of each shard. */
    bool requires_grad;              /**< As PyTorch's tensor properties have it. */
    bool pin_memory;                 /**< Likewise. */
    wherry_memory_format format;     /**< Likewise. */
    uint32_t ndim;                   /**< Dimensions of the global tensor. */
    const int64_t *shape;            /**< ndim global sizes. */
    uint32_t shard_count;            /**< Shards that this rank holds; 0 is allowed. */
    const wherry_shard *shards;      /**< shard_count of them. */
    uint32_t global_count;           /**< Shards on all ranks. */
    const wherry_shard_info *global; /**< global_count boxes: the metadata of all shards. */
    wherry_sharding sharding;        /**< How it was cut. */
} wherry_sharded;

/**
 * Makes a ShardedTensor.
 * @param sharded  borrowed. The tensors of its shards are taken over on success; everything else is copied.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a box lies outside the global tensor, or a local
 * tensor has another dtype or shape than its box or belongs to a container.
 */
WHERRY_API wherry_status wherry_sharded_create(const wherry_sharded *sharded, wherry_value **value_p,
                                               wherry_error *error);

/** What a SHARDED is made of, borrowed; NULL for any other kind. */
WHERRY_API const wherry_sharded *wherry_sharded_get(const wherry_value *value);

#ifdef __cplusplus
}
#endif
#endif
