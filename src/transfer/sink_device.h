/**
 * @file sink_device.h  Inside the sink: chunks that go to devices, by way of slots (stage.h) or
 * straight, by a lane that knows device memory.
 */
#ifndef WH_TRANSFER_SINK_DEVICE_H
#define WH_TRANSFER_SINK_DEVICE_H

#include "transfer/sink.h"

/** Takes a chunk for open. @return WHERRY_OK; WHERRY_MALFORMED where it is not awaited. */
wherry_status wh_chunk_sink_admit(wh_chunk_sink *sink, uint64_t chunk, wherry_error *error);

/** What has become of a chunk that is open. */
void wh_chunk_sink_note(wh_chunk_sink *sink, uint64_t chunk, wh_chunk_state state);

void wh_chunk_sink_init_stage(wh_chunk_sink *sink, wh_deadline deadline);

/** Waits until nothing is under way to a device. */
void wh_chunk_sink_destroy_stage(wh_chunk_sink *sink);

/** Whether any byte of a chunk goes to a device. */
bool wh_chunk_sink_goes_to_device(const wh_chunk_sink *sink, uint64_t chunk);

/** Lays a chunk of `length` bytes out in a slot. */
wherry_status wh_chunk_sink_open_slot(wh_chunk_sink *sink, uint64_t length, wh_landing *landing, wherry_error *error);

/**
 * Takes the slot back; where the chunk is good, its bytes go where they belong, and it has landed
 * when they are there.
 */
wherry_status wh_chunk_sink_close_slot(wh_chunk_sink *sink, wh_landing *landing, wh_chunk_state state,
                                       wherry_error *error);

/** wh_sink.route and wh_sink.arrived. */
wherry_status wh_chunk_sink_route(void *sink, uint64_t chunk, wh_routes *routes, wherry_error *error);
wherry_status wh_chunk_sink_arrived(void *sink, uint64_t chunk, wherry_error *error);

#endif
