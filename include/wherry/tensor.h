/**
 * @file wherry/tensor.h  Tensors: element types, devices, storages, views of storages, DTensor and
 * ShardedTensor.
 *
 * No function here blocks unless its comment says so. The rules for ownership and threads in
 * wherry/value.h apply here too. Available since version 0.1.
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
 * All element types, as X(NAME, VALUE, TEXT, BITS, CLASS). TEXT is PyTorch's name. VALUE is part of
 * the wire format and never changes. BITS is the size of one stored element: F4_E2M1FN_X2 holds two
 * 4-bit numbers in 8 bits. Quantized types are stored as plain integers. The tensor does not
 * contain their scale.
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
    WHERRY_CLASS_QUANTIZED, /**< Integers with a scale, which is not part of the tensor. */
    WHERRY_CLASS_PACKED,    /**< Numbers of fewer than 8 bits, stored in bytes. */
    WHERRY_CLASS_BITS,      /**< Bits without a numeric meaning. */
} wherry_dtype_class;

/** One row of the table of element types. */
typedef struct wherry_dtype_info {
    /** PyTorch's name, such as "bfloat16". The text is valid forever. */
    const char *name;
    uint32_t bits;             /**< Size of one stored element in bits. */
    uint32_t bytes;            /**< Size of one stored element in bytes: 1 to 16. */
    wherry_dtype_class class_; /**< What the bits mean. */
} wherry_dtype_info;

/** The table row of an element type; NULL for an unknown number. Any thread may call this. */
WHERRY_API const wherry_dtype_info *wherry_dtype_describe(wherry_dtype dtype);

/**
 * Finds an element type by PyTorch's name, "bfloat16" or "torch.bfloat16". Any thread may call
 * this.
 * @return its wherry_dtype; -1 if the name is unknown.
 */
WHERRY_API int wherry_dtype_find(const char *name);

/** @} */
/** @name Devices */
/** @{ */

/**
 * All kinds of devices that a state can name, as X(NAME, VALUE, TEXT). VALUE is part of the wire
 * format and never changes. This version can read and write host memory (CPU) and, with a CUDA
 * driver, the memory of CUDA devices. It knows the other kinds only by name.
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
    wherry_device_kind kind; /**< One of WHERRY_DEVICE_*. */
    /** The number of the device; -1 if unspecified, as in "cuda" instead of "cuda:0". */
    int32_t index;
} wherry_device;

/** Size in bytes of the longest text of a device, including the final zero. */
#define WHERRY_DEVICE_TEXT_MAX 32

/** Returns host memory: {WHERRY_DEVICE_CPU, -1}. Any thread may call this. */
WHERRY_API wherry_device wherry_device_cpu(void);

/**
 * The text of a kind, such as "cuda"; "?" for an unknown number. The text is valid forever. Any
 * thread may call this.
 */
WHERRY_API const char *wherry_device_kind_text(wherry_device_kind kind);

/**
 * Formats a device as "cpu", "cuda:1" and so on. Any thread may call this.
 * @param text  receives at most WHERRY_DEVICE_TEXT_MAX bytes.
 * @return text.
 */
WHERRY_API char *wherry_device_text(wherry_device device, char text[WHERRY_DEVICE_TEXT_MAX]);

/**
 * Parses a device such as "cpu" or "cuda:1". Any thread may call this.
 * @param text      zero-terminated; borrowed.
 * @param device_p  the result.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the text is not a device; the message lists the
 * known kinds.
 */
WHERRY_API wherry_status wherry_device_parse(const char *text, wherry_device *device_p, wherry_error *error);

/** @} */
/**
 * @name Storages
 *
 * A storage is a contiguous block of memory that tensors are views of: a pointer, a number of bytes
 * and a device. It is reference-counted: its creator holds one reference, and so does every tensor
 * that is a view of it. When the last reference is dropped, the library frees memory that it
 * allocated, and calls the release function for memory that the caller wrapped. Reference counting
 * is thread-safe. The caller must coordinate access to the bytes.
 */
/** @{ */

/** A block of memory. Opaque. */
typedef struct wherry_storage wherry_storage;

/**
 * Releases the memory of a wrapped storage. It is called once, in the thread that drops the last
 * reference to the storage. It must not call the library.
 */
typedef void (*wherry_release_fn)(void *context, void *data);

/**
 * Wraps memory that the caller owns.
 * @param data       the first byte. The memory must stay valid until release is called. May be NULL
 *                   only if nbytes is 0.
 * @param nbytes     the size.
 * @param device     the device of the memory. For CUDA, index -1 is replaced by the device of the
 *                   address, if there is a driver.
 * @param release    called when the storage is no longer used. NULL if the caller guarantees that
 *                   the memory outlives the storage.
 * @param context    passed to release.
 * @param storage_p  the storage, with one reference that the caller owns. Drop it with
 *                   wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also if the index of a CUDA device is -1 and the
 * driver does not know the address; WHERRY_NO_MEMORY. On failure release is not called and the
 * memory still belongs to the caller. Any thread may call this.
 */
WHERRY_API wherry_status wherry_storage_wrap(void *data, uint64_t nbytes, wherry_device device,
                                             wherry_release_fn release, void *context, wherry_storage **storage_p,
                                             wherry_error *error);

/**
 * Allocates a storage, filled with zeros. Host memory of 2 MiB or more is aligned to 2 MiB, and the
 * library requests huge pages for it. The system provides each of these pages when it is first
 * used. CUDA memory is allocated in the primary context of the device.
 * @param device     WHERRY_DEVICE_CPU, or WHERRY_DEVICE_CUDA if there is a driver; index -1 means
 *                   the first device.
 * @param storage_p  the storage, with one reference that the caller owns. Drop it with
 *                   wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED for another kind of device, or without a driver;
 * WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes, or if the device does not exist;
 * WHERRY_NO_MEMORY; WHERRY_SYSTEM if the device fails. May block for device memory. Any thread may
 * call this.
 */
WHERRY_API wherry_status wherry_storage_allocate(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/**
 * Creates a storage that has a size and a device but no memory. The storages of a decoded manifest
 * are like this.
 * @param storage_p  the storage, with one reference that the caller owns. Drop it with
 *                   wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes; WHERRY_NO_MEMORY. Any
 * thread may call this.
 */
WHERRY_API wherry_status wherry_storage_describe(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/** Takes another reference. Any thread may call this. @return storage. */
WHERRY_API wherry_storage *wherry_storage_ref(wherry_storage *storage);

/**
 * Drops a reference. Dropping the last one releases the memory. storage may be NULL. Any thread may
 * call this.
 */
WHERRY_API void wherry_storage_unref(wherry_storage *storage);

/**
 * The address of the first byte; NULL if the storage has no memory or no bytes. Any thread may call
 * this.
 */
WHERRY_API void *wherry_storage_data(const wherry_storage *storage);

/** The size in bytes. Any thread may call this. */
WHERRY_API uint64_t wherry_storage_nbytes(const wherry_storage *storage);

/**
 * The device of the memory. If the storage has no memory, the device that its memory would be on.
 * Any thread may call this.
 */
WHERRY_API wherry_device wherry_storage_device(const wherry_storage *storage);

/**
 * Provides memory for a new storage of a received state. The thread inside the receive or inside
 * wherry_plan_create calls this function, without holding a lock. The function may block and may
 * create storages, but must not use the transport.
 * @param storage_p  a storage of at least nbytes on that device. The library takes over the
 *                   reference.
 * @return WHERRY_OK, or a status that ends the receive (or wherry_plan_create) and becomes its
 * result.
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
    WHERRY_TENSOR_CONJ = 2, /**< The elements are the conjugates of the stored values. */
    WHERRY_TENSOR_NEG = 4,  /**< The elements are the negatives of the stored values. */
    WHERRY_TENSOR_FLAGS = 7 /**< All flags. */
};

/**
 * A view of a storage. Element (i, j, ...) of the tensor is element offset + i * strides[0] + j *
 * strides[1] + ... of the storage. Strides are never negative. They may be 0 (an expanded tensor),
 * and elements may overlap.
 */
typedef struct wherry_tensor {
    wherry_storage *storage; /**< The memory. A tensor value holds a reference to it. */
    wherry_dtype dtype;      /**< Type of the elements. */
    uint32_t flags;          /**< Any of WHERRY_TENSOR_REQUIRES_GRAD, _CONJ and _NEG. */
    uint32_t ndim;           /**< Number of dimensions: 0 (a scalar) to WHERRY_NDIM_MAX. */
    int64_t offset;          /**< Offset of the first element within the storage, in elements. */
    const int64_t *shape;    /**< ndim sizes; may be NULL if ndim is 0. */
    /**
     * ndim strides, in elements. NULL in wherry_tensor_create means contiguous, last dimension
     * fastest.
     */
    const int64_t *strides;
} wherry_tensor;

/**
 * Creates a tensor.
 * @param tensor   borrowed; its arrays are copied and a reference to its storage is taken.
 * @param value_p  owned by the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for an unknown dtype or flag, too
 * many dimensions, a negative size, stride or offset, or an element outside the storage. A tensor
 * without elements needs no bytes.
 */
WHERRY_API wherry_status wherry_tensor_create(const wherry_tensor *tensor, wherry_value **value_p, wherry_error *error);

/** The view of a TENSOR, borrowed, with its strides filled in; NULL for any other kind. */
WHERRY_API const wherry_tensor *wherry_tensor_get(const wherry_value *value);

/** The number of elements. */
WHERRY_API uint64_t wherry_tensor_count(const wherry_tensor *tensor);

/** @} */
/**
 * @name DTensor: a local tensor that is part of a global tensor, distributed over a mesh of ranks
 */
/** @{ */

/**
 * A mesh of ranks, which several DTensors can share. Opaque and reference-counted. It never
 * changes.
 */
typedef struct wherry_mesh wherry_mesh;

/** The contents of a mesh. */
typedef struct wherry_mesh_info {
    wherry_device_kind device; /**< The kind of device that the ranks compute on. */
    uint32_t ndim;             /**< Number of dimensions: 1 to WHERRY_NDIM_MAX. */
    const int64_t *shape;      /**< ndim sizes, each at least 1. */
    /** The rank at each position, last dimension fastest. Each is at least 0. */
    const int64_t *ranks;
    const char *const *dim_names; /**< ndim names, UTF-8; NULL if the dimensions have no names. */
} wherry_mesh_info;

/**
 * Creates a mesh.
 * @param info    borrowed; everything is copied.
 * @param mesh_p  the mesh, with one reference that the caller owns. Drop it with wherry_mesh_unref.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if a size or a rank is out of range.
 */
WHERRY_API wherry_status wherry_mesh_create(const wherry_mesh_info *info, wherry_mesh **mesh_p, wherry_error *error);

/** Takes another reference. Any thread may call this. @return mesh. */
WHERRY_API wherry_mesh *wherry_mesh_ref(wherry_mesh *mesh);

/** Drops a reference. mesh may be NULL. Any thread may call this. */
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
    /**
     * Split along `dim` into split_factor pieces per rank. The ranks get the pieces in turn: the
     * first rank gets the first piece, and so on.
     */
    WHERRY_STRIDED_SHARD = 2,
    /** Every rank has a partial result. The operation reduce_op combines them into the tensor. */
    WHERRY_PARTIAL = 3,
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
    wherry_value *local;                /**< This rank's part, a value of kind TENSOR. */
    wherry_mesh *mesh;                  /**< The ranks that the tensor is distributed over. */
    const wherry_placement *placements; /**< One per dimension of the mesh. */
    /** Element type of the global tensor and of the local one. */
    wherry_dtype dtype;
    /** WHERRY_TENSOR_REQUIRES_GRAD or 0. It applies to the DTensor, not to its local tensor. */
    uint32_t flags;
    /** Number of dimensions of the global tensor and of the local one. */
    uint32_t ndim;
    const int64_t *shape;   /**< ndim global sizes. */
    const int64_t *strides; /**< ndim global strides. */
} wherry_dtensor;

/**
 * Creates a DTensor.
 * @param dtensor  borrowed. On success the DTensor owns `local`. The arrays are copied, and a
 *                 reference to the mesh is taken.
 * @param value_p  owned by the caller.
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

/** Where a shard is. PyTorch writes it as "rank:3/cuda:1". */
typedef struct wherry_shard_place {
    int64_t rank;         /**< The rank; -1 if unspecified. */
    wherry_device device; /**< A device of that rank. */
} wherry_shard_place;

/** The box of a shard, and where the shard is. */
typedef struct wherry_shard_info {
    /** The position of the box's first element, one index per dimension of the global tensor. */
    const int64_t *offsets;
    const int64_t *sizes;     /**< The sizes of the box, one per dimension. */
    wherry_shard_place place; /**< Where the shard is. */
} wherry_shard_info;

/** A shard that this rank has. */
typedef struct wherry_shard {
    wherry_value *tensor;   /**< A value of kind TENSOR whose shape is info.sizes. */
    wherry_shard_info info; /**< Its box. */
} wherry_shard;

/** How a tensor was split into shards. The numbers are part of the wire format and never change. */
typedef enum wherry_sharding_kind {
    WHERRY_SHARDING_NONE = 0,       /**< Unspecified. */
    WHERRY_SHARDING_CHUNK = 1,      /**< Split along one dimension, one piece per place. */
    WHERRY_SHARDING_ENUMERABLE = 2, /**< Split into a list of boxes. */
} wherry_sharding_kind;

/** The sharding specification. */
typedef struct wherry_sharding {
    wherry_sharding_kind kind;        /**< Which of the members below are used. */
    int64_t dim;                      /**< CHUNK: the dimension. Otherwise 0. */
    uint32_t count;                   /**< CHUNK: number of places. ENUMERABLE: number of boxes. */
    const wherry_shard_place *places; /**< CHUNK: the places. Otherwise NULL. */
    const wherry_shard_info *boxes;   /**< ENUMERABLE: the boxes. Otherwise NULL. */
} wherry_sharding;

/** PyTorch's memory formats. The numbers are part of the wire format and never change. */
typedef enum wherry_memory_format {
    WHERRY_FORMAT_CONTIGUOUS = 0,
    WHERRY_FORMAT_CHANNELS_LAST = 1,
    WHERRY_FORMAT_CHANNELS_LAST_3D = 2,
    WHERRY_FORMAT_PRESERVE = 3,
} wherry_memory_format;

/**
 * The contents of a ShardedTensor. PyTorch's property `layout` is not included, because it is
 * always strided.
 */
typedef struct wherry_sharded {
    wherry_dtype dtype;              /**< Element type of the global tensor and of each shard. */
    bool requires_grad;              /**< From PyTorch's tensor properties. */
    bool pin_memory;                 /**< From PyTorch's tensor properties. */
    wherry_memory_format format;     /**< From PyTorch's tensor properties. */
    uint32_t ndim;                   /**< Number of dimensions of the global tensor. */
    const int64_t *shape;            /**< ndim global sizes. */
    uint32_t shard_count;            /**< Number of shards of this rank; may be 0. */
    const wherry_shard *shards;      /**< The shards of this rank. */
    uint32_t global_count;           /**< Number of shards of all ranks. */
    const wherry_shard_info *global; /**< The boxes of all shards. */
    wherry_sharding sharding;        /**< How the tensor was split. */
} wherry_sharded;

/**
 * Creates a ShardedTensor.
 * @param sharded  borrowed. On success the ShardedTensor owns the tensors of its shards. Everything
 *                 else is copied.
 * @param value_p  owned by the caller.
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
