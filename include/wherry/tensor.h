/**
 * @file wherry/tensor.h  Tensors: element types, devices, storages, views of storages, DTensor and
 * ShardedTensor.
 *
 * No function here blocks, unless it says so. The rules of wherry/value.h for ownership and threads
 * apply. All since 0.1.
 */
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

/** @name Element types */
/** @{ */

/**
 * X(NAME, VALUE, TEXT, BITS, CLASS): every element type. TEXT is PyTorch's name. VALUE is part of
 * the wire format and never changes. BITS is the size of one stored element: F4_E2M1FN_X2 holds two
 * 4-bit numbers in 8 bits. Quantized types are stored as plain integers; their scale is kept
 * elsewhere.
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

/** An element type. */
typedef enum wherry_dtype {
#define WHERRY_X(name, value, text, bits, class_) WHERRY_##name = (value),
    WHERRY_DTYPE_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_dtype;

/** What the bits of an element mean. */
typedef enum wherry_dtype_class {
    WHERRY_CLASS_BOOL,
    WHERRY_CLASS_UNSIGNED,
    WHERRY_CLASS_SIGNED,
    WHERRY_CLASS_FLOAT,
    WHERRY_CLASS_COMPLEX,
    WHERRY_CLASS_QUANTIZED, /**< Integers whose scale is kept elsewhere. */
    WHERRY_CLASS_PACKED,    /**< Numbers of fewer than 8 bits, stored in bytes. */
    WHERRY_CLASS_BITS,      /**< Bits without a meaning. */
} wherry_dtype_class;

/** One row of the table of element types. */
typedef struct wherry_dtype_info {
    const char *name;          /**< PyTorch's name, such as "bfloat16"; valid forever. */
    uint32_t bits;             /**< Bits of one stored element. */
    uint32_t bytes;            /**< bits / 8: 1 to 16. */
    wherry_dtype_class class_; /**< What the bits mean. */
} wherry_dtype_info;

/** The row of an element type; NULL for an unknown number. Any thread. */
WHERRY_API const wherry_dtype_info *wherry_dtype_describe(wherry_dtype dtype);

/**
 * Finds an element type by PyTorch's name, "bfloat16" or "torch.bfloat16".
 * @return its wherry_dtype; -1 if the name is unknown. Any thread.
 */
WHERRY_API int wherry_dtype_find(const char *name);

/** @} */
/** @name Devices */
/** @{ */

/**
 * X(NAME, VALUE, TEXT): every kind of device that a state can name. VALUE is part of the wire
 * format and never changes. This version reads and writes host memory (CPU) and, if there is a
 * driver, memory of CUDA devices. The other kinds are only names.
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

/** A kind of device. */
typedef enum wherry_device_kind {
#define WHERRY_X(name, value, text) WHERRY_DEVICE_##name = (value),
    WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_device_kind;

/** A device: its kind and its index. */
typedef struct wherry_device {
    wherry_device_kind kind; /**< WHERRY_DEVICE_CPU and so on. */
    int32_t index;           /**< -1: unspecified, as in "cuda" instead of "cuda:0". */
} wherry_device;

/** Bytes that the longest text of a device needs, including the terminating zero. */
#define WHERRY_DEVICE_TEXT_MAX 32

/** Host memory: {WHERRY_DEVICE_CPU, -1}. Any thread. */
WHERRY_API wherry_device wherry_device_cpu(void);

/** The text of a kind, such as "cuda"; valid forever. "?" for an unknown number. Any thread. */
WHERRY_API const char *wherry_device_kind_text(wherry_device_kind kind);

/**
 * Formats a device as "cpu", "cuda:1" and so on.
 * @param text  receives at most WHERRY_DEVICE_TEXT_MAX bytes.
 * @return text. Any thread.
 */
WHERRY_API char *wherry_device_text(wherry_device device, char text[WHERRY_DEVICE_TEXT_MAX]);

/**
 * Parses "cpu", "cuda:1" and so on.
 * @param text      zero-terminated; borrowed.
 * @param device_p  the result.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for any other text, with the known kinds in the
 * message. Any thread.
 */
WHERRY_API wherry_status wherry_device_parse(const char *text, wherry_device *device_p, wherry_error *error);

/** @} */
/**
 * @name Storages
 *
 * A storage is a contiguous block of memory that tensors are views of: a pointer, a number of bytes
 * and a device. It is reference-counted: its creator holds one reference, and so does every tensor
 * over it. When the last reference is dropped, the library frees memory that it allocated, and
 * calls the release function for memory that the caller wrapped. Reference counting is thread-safe.
 * Access to the bytes is up to the caller.
 */
/** @{ */

/** A block of memory. Opaque. */
typedef struct wherry_storage wherry_storage;

/**
 * Called once, when the last reference to a wrapped storage is dropped, in the thread that dropped
 * it. It must not call the library.
 */
typedef void (*wherry_release_fn)(void *context, void *data);

/**
 * Wraps memory that the caller owns.
 * @param data       the first byte; must stay valid until release is called. May be NULL only if
 *                   nbytes is 0.
 * @param nbytes     the size.
 * @param device     where the memory is. For CUDA, index -1 is replaced by the device of the
 *                   address.
 * @param release    called when the storage is no longer used. NULL: the caller keeps the memory
 *                   longer than that.
 * @param context    passed to release.
 * @param storage_p  the storage, with one reference that belongs to the caller:
 *                   wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also if a CUDA driver does not know the address;
 * WHERRY_NO_MEMORY. On failure release is not called and the memory still belongs to the caller.
 * Any thread.
 */
WHERRY_API wherry_status wherry_storage_wrap(void *data, uint64_t nbytes, wherry_device device,
                                             wherry_release_fn release, void *context, wherry_storage **storage_p,
                                             wherry_error *error);

/**
 * Allocates a storage, filled with zeros. Host memory of 2 MiB or more is aligned to 2 MiB and asks
 * for huge pages; the system provides each page when it is first touched. Memory of a CUDA device
 * comes from its primary context.
 * @param device     WHERRY_DEVICE_CPU, or WHERRY_DEVICE_CUDA if there is a driver; index -1 is the
 *                   first device.
 * @param storage_p  the storage, with one reference that belongs to the caller:
 *                   wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED for another kind of device, or without a driver;
 * WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes, or if the device does not exist;
 * WHERRY_NO_MEMORY; WHERRY_SYSTEM if the device fails. May block for device memory. Any thread.
 */
WHERRY_API wherry_status wherry_storage_allocate(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/**
 * Creates a storage that has a size and a device but no memory. A decoded manifest has such
 * storages.
 * @param storage_p  the storage, with one reference that belongs to the caller:
 *                   wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes; WHERRY_NO_MEMORY. Any
 * thread.
 */
WHERRY_API wherry_status wherry_storage_describe(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/** Takes another reference. @return storage. Any thread. */
WHERRY_API wherry_storage *wherry_storage_ref(wherry_storage *storage);

/** Drops a reference; the last one releases the memory. storage may be NULL. Any thread. */
WHERRY_API void wherry_storage_unref(wherry_storage *storage);

/** The first byte; NULL if the storage has no memory or no bytes. Any thread. */
WHERRY_API void *wherry_storage_data(const wherry_storage *storage);

/** The size in bytes. Any thread. */
WHERRY_API uint64_t wherry_storage_nbytes(const wherry_storage *storage);

/** The device of the memory, or the device that the memory will be on. Any thread. */
WHERRY_API wherry_device wherry_storage_device(const wherry_storage *storage);

/**
 * Provides memory for a new storage of a received state. It may block.
 * @param storage_p  a storage of at least nbytes on that device; the library takes its reference
 *                   over.
 * @return WHERRY_OK, or a status that ends the planning and is passed on to its caller.
 */
typedef wherry_status (*wherry_allocate_fn)(void *context, uint64_t nbytes, wherry_device device,
                                            wherry_storage **storage_p);

/** @} */
/** @name Tensors: strided views of storages */
/** @{ */

/** The maximum number of dimensions of a tensor. */
#define WHERRY_NDIM_MAX 64

/** Bits of wherry_tensor.flags. The numbers are part of the wire format and never change. */
enum {
    WHERRY_TENSOR_REQUIRES_GRAD = 1,
    WHERRY_TENSOR_CONJ = 2, /**< The elements are the conjugates of what is stored. */
    WHERRY_TENSOR_NEG = 4,  /**< The elements are the negatives of what is stored. */
    WHERRY_TENSOR_FLAGS = 7 /**< All of them. */
};

/**
 * A view of a storage. Element (i, j, ...) is offset + i * strides[0] + j * strides[1] + ...
 * elements after the first byte of the storage. Strides are never negative. They may be 0 (an
 * expanded tensor), and elements may overlap.
 */
typedef struct wherry_tensor {
    wherry_storage *storage; /**< A tensor value holds a reference to it. */
    wherry_dtype dtype;      /**< Of the elements. */
    uint32_t flags;          /**< WHERRY_TENSOR_* */
    uint32_t ndim;           /**< 0 (a scalar) to WHERRY_NDIM_MAX. */
    int64_t offset;          /**< In elements. */
    const int64_t *shape;    /**< ndim sizes; may be NULL if ndim is 0. */
    /**
     * ndim strides, in elements. In wherry_tensor_create, NULL: contiguous, last dimension fastest.
     */
    const int64_t *strides;
} wherry_tensor;

/**
 * Creates a tensor.
 * @param tensor   borrowed; its arrays are copied and a reference to its storage is taken.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for an unknown dtype or flag, too
 * many dimensions, a negative size, stride or offset, or an element outside the storage. A tensor
 * without elements needs no bytes.
 */
WHERRY_API wherry_status wherry_tensor_create(const wherry_tensor *tensor, wherry_value **value_p, wherry_error *error);

/** The view of a TENSOR, borrowed, with its strides filled in; NULL for any other kind. */
WHERRY_API const wherry_tensor *wherry_tensor_get(const wherry_value *value);

/** The number of elements. */
WHERRY_API uint64_t wherry_tensor_count(const wherry_tensor *tensor);

/**
 * The whole storage of a tensor as a one-dimensional tensor of another dtype, over the same
 * storage. With WHERRY_U8 this is a cast to bytes. The offset and the strides of the tensor do not
 * matter.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if the storage is not a whole number
 * of elements.
 */
WHERRY_API wherry_status wherry_tensor_cast(const wherry_tensor *tensor, wherry_dtype dtype, wherry_value **value_p,
                                            wherry_error *error);

/** @} */
/**
 * @name DTensor: a local tensor that is part of a global tensor, distributed over a mesh of ranks
 */
/** @{ */

/** A mesh of ranks, shared by the DTensors over it. Opaque, reference-counted, never changed. */
typedef struct wherry_mesh wherry_mesh;

/** The contents of a mesh. */
typedef struct wherry_mesh_info {
    wherry_device_kind device; /**< The kind of device that the ranks compute on. */
    uint32_t ndim;             /**< 1 to WHERRY_NDIM_MAX. */
    const int64_t *shape;      /**< ndim sizes, each at least 1. */
    /** One rank per position, last dimension fastest; each at least 0. */
    const int64_t *ranks;
    const char *const *dim_names; /**< ndim names, UTF-8; NULL if the dimensions have no names. */
} wherry_mesh_info;

/**
 * Creates a mesh.
 * @param info    borrowed; everything is copied.
 * @param mesh_p  the mesh, with one reference that belongs to the caller: wherry_mesh_unref.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if a size or a rank is out of range.
 */
WHERRY_API wherry_status wherry_mesh_create(const wherry_mesh_info *info, wherry_mesh **mesh_p, wherry_error *error);

/** Takes another reference. @return mesh. Any thread. */
WHERRY_API wherry_mesh *wherry_mesh_ref(wherry_mesh *mesh);

/** Drops a reference. mesh may be NULL. Any thread. */
WHERRY_API void wherry_mesh_unref(wherry_mesh *mesh);

/** The contents of a mesh, borrowed. */
WHERRY_API const wherry_mesh_info *wherry_mesh_get(const wherry_mesh *mesh);

/**
 * How a tensor is placed on one dimension of a mesh. The numbers are part of the wire format and
 * never change.
 */
typedef enum wherry_placement_kind {
    WHERRY_REPLICATE = 0, /**< Every rank has the whole tensor. */
    /** Split along `dim` into equal pieces; the last ones may be smaller or empty. */
    WHERRY_SHARD = 1,
    /** Split along `dim` into split_factor pieces per rank, dealt out in turn. */
    WHERRY_STRIDED_SHARD = 2,
    WHERRY_PARTIAL = 3, /**< Every rank has one summand. */
} wherry_placement_kind;

/** One placement. */
typedef struct wherry_placement {
    wherry_placement_kind kind; /**< Which of the members below are used. */
    /** SHARD and STRIDED_SHARD: the dimension of the tensor. Otherwise 0. */
    uint32_t dim;
    int64_t split_factor;  /**< STRIDED_SHARD: at least 1. Otherwise 0. */
    const char *reduce_op; /**< PARTIAL: "sum", "avg" and so on, UTF-8. Otherwise NULL. */
} wherry_placement;

/** The contents of a DTensor. */
typedef struct wherry_dtensor {
    wherry_value *local;                /**< A value of kind TENSOR: the part of this rank. */
    wherry_mesh *mesh;                  /**< The ranks. */
    const wherry_placement *placements; /**< One per dimension of the mesh. */
    wherry_dtype dtype;                 /**< Of the global tensor and of the local one. */
    /** WHERRY_TENSOR_REQUIRES_GRAD or 0, of the DTensor itself. */
    uint32_t flags;
    /** Dimensions of the global tensor and of the local one. */
    uint32_t ndim;
    const int64_t *shape;   /**< ndim global sizes. */
    const int64_t *strides; /**< ndim global strides. */
} wherry_dtensor;

/**
 * Creates a DTensor.
 * @param dtensor  borrowed. `local` is taken over on success, the arrays are copied, a reference to
 *                 the mesh is taken.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if local is not a TENSOR of that
 * dtype and number of dimensions, if it belongs to a container, or if a placement names a dimension
 * that the tensor does not have.
 */
WHERRY_API wherry_status wherry_dtensor_create(const wherry_dtensor *dtensor, wherry_value **value_p,
                                               wherry_error *error);

/** The contents of a DTENSOR, borrowed; NULL for any other kind. */
WHERRY_API const wherry_dtensor *wherry_dtensor_get(const wherry_value *value);

/** @} */
/** @name ShardedTensor: local shards, each a box of a global tensor */
/** @{ */

/** Where a shard is: PyTorch's "rank:3/cuda:1". */
typedef struct wherry_shard_place {
    int64_t rank;         /**< -1: unspecified. */
    wherry_device device; /**< Of that rank. */
} wherry_shard_place;

/** The box of a shard, and where the shard is. */
typedef struct wherry_shard_info {
    /** The first element of the box, one index per dimension of the global tensor. */
    const int64_t *offsets;
    const int64_t *sizes;     /**< The sizes of the box, one per dimension. */
    wherry_shard_place place; /**< Where the shard is. */
} wherry_shard_info;

/** A shard of this rank. */
typedef struct wherry_shard {
    wherry_value *tensor;   /**< A value of kind TENSOR whose shape is info.sizes. */
    wherry_shard_info info; /**< Its box. */
} wherry_shard;

/** How a tensor was split into shards. The numbers are part of the wire format and never change. */
typedef enum wherry_sharding_kind {
    WHERRY_SHARDING_NONE = 0,       /**< Unspecified. */
    WHERRY_SHARDING_CHUNK = 1,      /**< Along one dimension, one piece per place. */
    WHERRY_SHARDING_ENUMERABLE = 2, /**< A list of boxes. */
} wherry_sharding_kind;

/** The sharding specification. */
typedef struct wherry_sharding {
    wherry_sharding_kind kind;        /**< Which of the members below are used. */
    int64_t dim;                      /**< CHUNK: the dimension. Otherwise 0. */
    uint32_t count;                   /**< CHUNK: number of places. ENUMERABLE: number of boxes. */
    const wherry_shard_place *places; /**< CHUNK. Otherwise NULL. */
    const wherry_shard_info *boxes;   /**< ENUMERABLE. Otherwise NULL. */
} wherry_sharding;

/** PyTorch's memory formats. The numbers are part of the wire format and never change. */
typedef enum wherry_memory_format {
    WHERRY_FORMAT_CONTIGUOUS = 0,
    WHERRY_FORMAT_CHANNELS_LAST = 1,
    WHERRY_FORMAT_CHANNELS_LAST_3D = 2,
    WHERRY_FORMAT_PRESERVE = 3,
} wherry_memory_format;

/** The contents of a ShardedTensor. The layout in its tensor properties is always strided. */
typedef struct wherry_sharded {
    wherry_dtype dtype;              /**< Of the global tensor and of each shard. */
    bool requires_grad;              /**< From PyTorch's tensor properties. */
    bool pin_memory;                 /**< From PyTorch's tensor properties. */
    wherry_memory_format format;     /**< From PyTorch's tensor properties. */
    uint32_t ndim;                   /**< Dimensions of the global tensor. */
    const int64_t *shape;            /**< ndim global sizes. */
    uint32_t shard_count;            /**< Shards of this rank; may be 0. */
    const wherry_shard *shards;      /**< shard_count shards. */
    uint32_t global_count;           /**< Shards of all ranks. */
    const wherry_shard_info *global; /**< global_count boxes: the metadata of all shards. */
    wherry_sharding sharding;        /**< How it was split. */
} wherry_sharded;

/**
 * Creates a ShardedTensor.
 * @param sharded  borrowed. The tensors of its shards are taken over on success; everything else is
 *                 copied.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if a box is outside the global
 * tensor, or if the tensor of a shard has another dtype or shape than its box, or belongs to a
 * container.
 */
WHERRY_API wherry_status wherry_sharded_create(const wherry_sharded *sharded, wherry_value **value_p,
                                               wherry_error *error);

/** The contents of a SHARDED, borrowed; NULL for any other kind. */
WHERRY_API const wherry_sharded *wherry_sharded_get(const wherry_value *value);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
