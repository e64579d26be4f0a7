/*
 * The kernel that copies many runs in one launch, with one block of threads per run. scripts/make-kernel compiles it to
 * cuda_copy.ptx, which is part of the library; the driver compiles that for its device. A run has 1 byte to 128 KiB;
 * the caller splits longer runs.
 *
 * Each thread reads four words of up to 16 bytes before it writes them, which keeps the memory of a large device busy.
 * If source or target is not aligned to 16 bytes, it uses smaller words.
 */
#define COPY(type)                                                                                                     \
    static ulong copy_##type(ulong to, ulong from, ulong length, uint thread, uint threads) {                          \
        __global type *restrict target = (__global type *)to;                                                          \
        const __global type *restrict source = (const __global type *)from;                                            \
        ulong count = length / sizeof(type);                                                                           \
        ulong i = thread;                                                                                              \
        for (; i + 3 * (ulong)threads < count; i += 4 * (ulong)threads) {                                              \
            type a = source[i];                                                                                        \
            type b = source[i + threads];                                                                              \
            type c = source[i + 2 * (ulong)threads];                                                                   \
            type d = source[i + 3 * (ulong)threads];                                                                   \
            target[i] = a;                                                                                             \
            target[i + threads] = b;                                                                                   \
            target[i + 2 * (ulong)threads] = c;                                                                        \
            target[i + 3 * (ulong)threads] = d;                                                                        \
        }                                                                                                              \
        for (; i < count; i += threads) {                                                                              \
            target[i] = source[i];                                                                                     \
        }                                                                                                              \
        return count * sizeof(type);                                                                                   \
    }

COPY(uint4)
COPY(uint2)
COPY(uint)
COPY(ushort)
COPY(uchar)

typedef struct run {
    ulong from;
    ulong to;
    ulong length;
} run;

__kernel void wherry_copy(ulong table, uint count) {
    uint thread = __nvvm_read_ptx_sreg_tid_x();
    uint threads = __nvvm_read_ptx_sreg_ntid_x();
    uint number = __nvvm_read_ptx_sreg_ctaid_x();
    if (number >= count) {
        return;
    }
    const __global run *one = (const __global run *)table + number;
    ulong from = one->from;
    ulong to = one->to;
    ulong length = one->length;
    ulong unlike = from | to;
    ulong done = 0;
    if (unlike % 16 == 0) {
        done = copy_uint4(to, from, length, thread, threads);
    } else if (unlike % 8 == 0) {
        done = copy_uint2(to, from, length, thread, threads);
    } else if (unlike % 4 == 0) {
        done = copy_uint(to, from, length, thread, threads);
    } else if (unlike % 2 == 0) {
        done = copy_ushort(to, from, length, thread, threads);
    }
    copy_uchar(to + done, from + done, length - done, thread, threads);
}
