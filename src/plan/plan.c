/* Using a plan: its figures, its chunks, and placing their bytes. */
#include "plan/plan.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/memory.h"

static void destroy_paths(wh_paths *paths) {
    for (size_t i = 0; i < paths->count; i++) {
        wh_free(paths->items[i]);
    }
    wh_free(paths->items);
}

void wherry_plan_destroy(wherry_plan *plan) {
    if (!plan) {
        return;
    }
    for (size_t i = 0; i < plan->move_count; i++) {
        wh_free((void *)plan->moves[i].copy.levels);
    }
    for (size_t i = 0; i < plan->kept_count && !plan->borrowed; i++) {
        wherry_storage_unref(plan->kept[i]);
    }
    wh_free(plan->moves);
    wh_free(plan->reach);
    wh_chunk_set_destroy(&plan->wanted);
    wh_chunk_set_destroy(&plan->tangled);
    destroy_paths(&plan->missing);
    destroy_paths(&plan->extra);
    if (!plan->borrowed) {
        wh_free(plan->kept);
        wherry_prepared_destroy(plan->prepared);
    }
    wh_free(plan);
}

const wherry_prepared *wherry_plan_prepared(const wherry_plan *plan) {
    return plan->prepared;
}

wherry_status wherry_plan_take_state(wherry_plan *plan, wherry_value **state_p, wherry_error *error) {
    if (!plan || !state_p || plan->state_taken) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the state can be taken out of a plan once");
    }
    *state_p = (wherry_value *)plan->prepared->state;
    plan->prepared->state = NULL;
    plan->prepared->owns_state = false;
    plan->state_taken = true;
    return WHERRY_OK;
}

const wherry_interval *wherry_plan_intervals(const wherry_plan *plan, size_t *count_p) {
    *count_p = plan->wanted.count;
    return plan->wanted.intervals;
}

void wherry_plan_summarize(const wherry_plan *plan, wherry_plan_summary *summary_p) {
    wherry_plan_summary summary = {
        .tensors = plan->tensor_count,
        .bytes = plan->bytes,
        .copies = plan->move_count,
        .missing = plan->missing.count,
        .extra = plan->extra.count,
        .chunks = plan->wanted.total,
        .direct = plan->wanted.total - plan->tangled.total,
    };
    const wh_space *space = &plan->prepared->space;
    for (size_t i = 0; i < plan->wanted.count; i++) {
        const wherry_interval *wanted = plan->wanted.intervals + i;
        summary.chunk_bytes +=
            wh_space_chunk_begin(space, wanted->first + wanted->count) - wh_space_chunk_begin(space, wanted->first);
    }
    *summary_p = summary;
}

const char *wherry_plan_missing(const wherry_plan *plan, size_t index) {
    return index < plan->missing.count ? plan->missing.items[index] : NULL;
}

const char *wherry_plan_extra(const wherry_plan *plan, size_t index) {
    return index < plan->extra.count ? plan->extra.items[index] : NULL;
}

bool wherry_plan_chunk_is_direct(const wherry_plan *plan, uint64_t chunk) {
    return wh_chunk_set_has(&plan->wanted, chunk) && !wh_chunk_set_has(&plan->tangled, chunk);
}

typedef struct visit {
    const wh_move *move;
    uint64_t begin;
    wherry_copy_fn fn;
    void *context;
} visit;

static int visit_runs(void *context, const wh_copy_runs *runs) {
    const visit *v = context;
    char *memory = v->move->memory;
    wherry_copy copy = {.storage = v->move->storage,
                        .chunk_offset = runs->from - v->begin,
                        .storage_offset = runs->to,
                        .length = runs->length,
                        .count = runs->count,
                        .chunk_stride = runs->from_step,
                        .storage_stride = runs->to_step,
                        .memory = memory ? memory + runs->to : NULL};
    return v->fn(v->context, &copy);
}

/** The first move that reaches behind a position. */
static size_t first_move(const wherry_plan *plan, uint64_t position) {
    size_t low = 0;
    size_t high = plan->move_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (plan->reach[middle] <= position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int wherry_plan_visit_chunk(const wherry_plan *plan, uint64_t chunk, wherry_copy_fn visit_fn, void *context) {
    if (!wh_chunk_set_has(&plan->wanted, chunk)) {
        return 0;
    }
    uint64_t begin = wh_space_chunk_begin(&plan->prepared->space, chunk);
    uint64_t end = wh_space_chunk_begin(&plan->prepared->space, chunk + 1);
    int result = 0;
    for (size_t i = first_move(plan, begin); i < plan->move_count && plan->moves[i].copy.from < end && !result; i++) {
        if (plan->moves[i].end > begin) {
            visit v = {plan->moves + i, begin, visit_fn, context};
            result = wh_copy_visit(&plan->moves[i].copy, begin, end, visit_runs, &v);
        }
    }
    return result;
}

/** A chunk that is being placed. */
typedef struct placing {
    const char *bytes;
    wherry_status status;
    wherry_error *error;
} placing;

static int place_copy(void *context, const wherry_copy *copy) {
    placing *p = context;
    const char *from = p->bytes + copy->chunk_offset;
    const wh_memory_ops *memory = wh_memory_of(wherry_storage_device(copy->storage).kind);
    char *to = copy->memory;
    if (!memory) {
        p->status = wh_fail(p->error, WHERRY_UNSUPPORTED, "a chunk goes to memory that cannot be written here");
        return 1;
    }
    for (uint64_t i = 0; i < copy->count && p->status == WHERRY_OK; i++) {
        p->status = memory->write(to + i * copy->storage_stride, from + i * copy->chunk_stride, copy->length, p->error);
    }
    return p->status != WHERRY_OK;
}

wherry_status wherry_plan_place(const wherry_plan *plan, uint64_t chunk, const void *bytes, size_t size,
                                wherry_error *error) {
    uint64_t begin = wh_space_chunk_begin(&plan->prepared->space, chunk);
    uint64_t length = wh_space_chunk_begin(&plan->prepared->space, chunk + 1) - begin;
    if (!bytes || !wh_chunk_set_has(&plan->wanted, chunk) || size != length) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "chunk %llu has %llu bytes, or the plan does not ask for it",
                       (unsigned long long)chunk, (unsigned long long)length);
    }
    placing p = {bytes, WHERRY_OK, error};
    wherry_plan_visit_chunk(plan, chunk, place_copy, &p);
    return p.status;
}
