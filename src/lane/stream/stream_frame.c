#include "lane/stream/stream_frame.h"

#include "base/error.h"

wherry_status wh_stream_ready_digester(wh_stream_worker *worker, wherry_error *error) {
    if (!worker->digester) {
        worker->digester = wh_digester_create();
    }
    return worker->digester ? WHERRY_OK : wh_fail_memory(error, "a digest");
}

void wh_stream_worker_destroy(wh_stream_worker *worker) {
    if (worker->pipe) {
        worker->pipe->ops->close(worker->pipe);
    }
    wh_digester_destroy(worker->digester);
    wh_segments_destroy(&worker->segments);
    wh_landing_destroy(&worker->landing);
}
