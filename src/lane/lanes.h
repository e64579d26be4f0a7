/** @file lanes.h  Declares all lanes, for the code that registers them. */
#ifndef WH_LANE_LANES_H
#define WH_LANE_LANES_H

#include "lane/lane.h"

/** Same host, CUDA memory: the receiver opens the source's memory with CUDA IPC. */
extern const wh_lane_ops wh_lane_cuda_ipc;

/** Between hosts, CUDA memory: uses an NCCL communicator. */
extern const wh_lane_ops wh_lane_nccl;

/** Same host: the receiver reads the source's memory with process_vm_readv. */
extern const wh_lane_ops wh_lane_cma;

/** Same host: uses ring buffers in shared memory. */
extern const wh_lane_ops wh_lane_ring;

/** Uses the put and get operations of the group. */
extern const wh_lane_ops wh_lane_blocks;

/** Uses UCX, loaded at run time. */
extern const wh_lane_ops wh_lane_ucx;

/** Uses socket connections that the group opens. */
extern const wh_lane_ops wh_lane_stream;

#endif
