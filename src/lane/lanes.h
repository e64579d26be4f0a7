/** @file lanes.h  All lanes, for the code that registers them. */
#ifndef WH_LANE_LANES_H
#define WH_LANE_LANES_H

#include "lane/lane.h"

/** Same host, CUDA memory: the driver opens it in the receiver's process. */
extern const wh_lane_ops wh_lane_cuda_ipc;

/** Between hosts, CUDA memory: an NCCL communicator. */
extern const wh_lane_ops wh_lane_nccl;

/** Same host: process_vm_readv. */
extern const wh_lane_ops wh_lane_cma;

/** Same host: rings in shared memory. */
extern const wh_lane_ops wh_lane_ring;

/** Blocks that the group moves. */
extern const wh_lane_ops wh_lane_blocks;

/** UCX, loaded at run time. wh_lane_ucx_absent replaces it in a build without UCX's headers. */
extern const wh_lane_ops wh_lane_ucx_absent;
#ifdef WH_HAVE_UCX
extern const wh_lane_ops wh_lane_ucx;
#else
#define wh_lane_ucx wh_lane_ucx_absent
#endif

/** Sockets of the group. */
extern const wh_lane_ops wh_lane_stream;

#endif
