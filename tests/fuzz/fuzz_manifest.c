/*
 * Arbitrary bytes as a manifest: decoding gives an error or a state. A decoded state is encoded to
 * the same bytes, printed and planned. No copy of the plan leaves its chunk or its storage.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

#include "require.h"

enum { MEMORY = 1 << 30, CHUNKS = 64 };

static wherry_status allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    uint64_t *left = context;
    (void)device;
    if (nbytes > *left) {
        return WHERRY_NO_MEMORY;
    }
    *left -= nbytes;
    return wherry_storage_allocate(nbytes, wherry_device_cpu(), storage_p, NULL);
}

typedef struct bounds {
    uint64_t length;
    uint64_t pieces;
    uint64_t copies;
} bounds;

static int check_copy(void *context, const wherry_copy *copy) {
    bounds *in = context;
    uint64_t last = copy->count - 1;
    REQUIRE(copy->count > 0 && copy->length > 0);
    REQUIRE(copy->chunk_offset + last * copy->chunk_stride + copy->length <= in->length);
    REQUIRE(copy->storage_offset + last * copy->storage_stride + copy->length <= wherry_storage_nbytes(copy->storage));
    return ++in->copies > 10000;
}

static int check_piece(void *context, const wherry_piece *piece) {
    bounds *in = context;
    uint64_t end = piece->offset + (piece->count - 1) * piece->stride + piece->length;
    REQUIRE(piece->count > 0 && end <= wherry_storage_nbytes(piece->storage));
    in->pieces += piece->count * piece->length;
    return ++in->copies > 10000;
}

static void check_chunks(const wherry_plan *plan) {
    const wherry_prepared *prepared = wherry_plan_prepared(plan);
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    for (size_t i = 0; i < count && i < CHUNKS; i++) {
        for (uint64_t c = intervals[i].first; c < intervals[i].first + intervals[i].count && c < CHUNKS; c++) {
            bounds in = {0};
            uint64_t begin;
            wherry_prepared_chunk(prepared, c, &begin, &in.length);
            REQUIRE(in.length > 0);
            wherry_plan_visit_chunk(plan, c, check_copy, &in);
            in.copies = 0;
            REQUIRE(wherry_prepared_visit_chunk(prepared, c, check_piece, &in) || in.pieces == in.length);
        }
    }
}

static void check_again(const wherry_prepared *prepared, const uint8_t *data, size_t size) {
    void *bytes;
    size_t again;
    REQUIRE(wherry_manifest_encode(prepared, &bytes, &again, NULL) == WHERRY_OK);
    REQUIRE(again == size && memcmp(bytes, data, size) == 0);
    wherry_free(bytes);
}

/** Plans the same manifest again, into the state of the first plan. */
static void check_in_place(const uint8_t *data, size_t size, const wherry_value *target) {
    wherry_prepared *prepared;
    wherry_plan *plan;
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_ANY_DEVICE;
    REQUIRE(wherry_manifest_decode(data, size, NULL, &prepared, NULL) == WHERRY_OK);
    if (wherry_plan_create(prepared, target, &options, &plan, NULL) == WHERRY_OK) {
        check_chunks(plan);
        wherry_plan_destroy(plan);
    } else {
        wherry_prepared_destroy(prepared);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static FILE *nowhere;
    wherry_prepared *prepared;
    wherry_error error;
    error.message[0] = '\0';
    wherry_status status = wherry_manifest_decode(data, size, NULL, &prepared, &error);
    if (status != WHERRY_OK) {
        REQUIRE(error.status == status && error.message[0]);
        return 0;
    }
    check_again(prepared, data, size);
    nowhere = nowhere ? nowhere : fopen("/dev/null", "w");
    REQUIRE(wherry_value_dump(wherry_prepared_state(prepared), nowhere, NULL) == WHERRY_OK);
    uint64_t left = MEMORY;
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.allocate = allocate;
    options.context = &left;
    wherry_plan *plan;
    if (wherry_plan_create(prepared, NULL, &options, &plan, &error) != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
        return 0;
    }
    wherry_value *state;
    check_chunks(plan);
    REQUIRE(wherry_plan_take_state(plan, &state, NULL) == WHERRY_OK);
    wherry_plan_destroy(plan);
    check_in_place(data, size, state);
    wherry_value_destroy(state);
    return 0;
}
