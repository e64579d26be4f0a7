/** @file lanes.h  The lanes that there are, for whoever registers them. */
#ifndef WH_LANE_LANES_H
#define WH_LANE_LANES_H

#include "lane/lane.h"

/** Same host, memory of CUDA devices: the driver opens it in the receiver's process. */
extern const wh_lane_ops wh_lane_cuda_ipc;

/** Between hosts, memory of CUDA devices: a communicator of NCCL. */
extern const wh_lane_ops wh_lane_nccl;

/** Same host: process_vm_readv. */
extern const wh_lane_ops wh_lane_cma;

/** Same host: rings in shared memory. */
extern const wh_lane_ops wh_lane_ring;

/** Blocks that the group moves by itself, where it does. */
extern const wh_lane_ops wh_lane_blocks;

/** UCX, loaded at run time; and what stands in its place where the library was built without UCX's headers, and says so. */
extern const wh_lane_ops wh_lane_ucx_absent;
#ifdef WH_HAVE_UCX
extern const wh_lane_ops wh_lane_ucx;
#else
#define wh_lane_ucx wh_lane_ucx_absent
#endif

/** Channels of the group, which are sockets. */
extern const wh_lane_ops wh_lane_stream;

#endif
