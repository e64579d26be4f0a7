/**
 * @file stream_frame.h  The frames of the stream lane. They are in a header so that tests can use
 * them.
 *
 * A frame is a header of 64 bytes and the bytes of one chunk. Numbers are big-endian:
 *
 *     header   digest of the previous chunk (16 bytes; zeros if its header announced none); chunk
 *              (u64); length (u64); 32 zero bytes. If the top bit of the length is set, the next
 *              header has the digest of this chunk.
 *     end      a header with chunk 2^64 - 1 and length 0: no chunk follows
 *     pause    a header with chunk 2^64 - 2 and length 0: it brings the last digest, because the
 *              next request has not come yet
 *
 * The header has 64 bytes so that bytes that are aligned in memory are also aligned in the stream.
 * The kernel copies aligned bytes faster.
 */
#ifndef WH_LANE_STREAM_FRAME_H
#define WH_LANE_STREAM_FRAME_H

#include <stdint.h>

#include <wherry/expert.h>

#define WH_STREAM_END UINT64_MAX
#define WH_STREAM_PAUSE (UINT64_MAX - 1)
#define WH_STREAM_DIGEST_FOLLOWS (UINT64_C(1) << 63)

enum { WH_STREAM_HEADER_BYTES = 64, WH_STREAM_HEADER_USED = WHERRY_DIGEST_BYTES + 16 };

#endif
