/** @file wherry/device.h  The kinds of memory that a storage may live in. */
#ifndef WHERRY_DEVICE_H
#define WHERRY_DEVICE_H

#include <stdint.h>

#include <wherry/error.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
