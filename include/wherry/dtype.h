/** @file wherry/dtype.h  The element types of tensors. */
#ifndef WHERRY_DTYPE_H
#define WHERRY_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
