/* Each allocation fails in turn, also Jansson's: WHERRY_NO_MEMORY, no leak, no file left. */
#include <jansson.h>

#include <wherry/file.h>

#include "support/build.h"
#include "support/counting_allocator.h"
#include "support/scratch_folder.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static counting memory;
static scratch folder;
static scratch output;

static void *json_allocate(size_t size) {
    return counting_allocate(&memory, size ? size : 1);
}

static void json_release(void *block) {
    if (block) {
        counting_release(&memory, block);
    }
}

static const char *const names[] = {"a.safetensors", "a.safetensors.index.json", "a.wherry"};

enum { NAMES = sizeof(names) / sizeof(*names) };

/** A state that every format can hold. */
static wherry_value *make_state(void) {
    return build_dict("a", build_tensor(build_storage(40, 1), WHERRY_F32, 0, 2, SHAPE(2, 5), NULL), "b",
                      build_list(build_tensor(build_storage(8, 2), WHERRY_I64, 0, 0, NULL, NULL), NULL), NULL);
}

static wherry_file_write_options options_of(void) {
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.flags = WHERRY_FILE_DIGESTS | WHERRY_FILE_SYNC;
    options.shard_bytes = 40;
    return options;
}

static wherry_status try_open(size_t name, const wherry_value *state, wherry_error *error) {
    (void)state;
    wherry_file *file = NULL;
    wherry_file_open_options options;
    wherry_file_open_options_init(&options);
    options.flags = WHERRY_FILE_VERIFY;
    wherry_status status = wherry_file_open(scratch_file(&folder, names[name]), &options, &file, error);
    wherry_file_close(file);
    return status;
}

static wherry_status try_write(size_t name, const wherry_value *state, wherry_error *error) {
    wherry_file_write_options options = options_of();
    return wherry_file_write(scratch_file(&output, names[name]), state, &options, error);
}

/** Opens a bad file of each format, because filling the error may also need memory. */
static wherry_status try_bad(size_t name, const wherry_value *state, wherry_error *error) {
    static const char *const bad[] = {"overlap.safetensors", "tensor_missing.safetensors.index.json",
                                      "digests_missing.wherry"};
    char path[1024];
    wherry_file *file;
    (void)state;
    snprintf(path, sizeof(path), "%.500s/files/bad/%s", getenv("WHERRY_GOLDEN"), bad[name]);
    wherry_status status = wherry_file_open(path, NULL, &file, error);
    return status == WHERRY_NO_MEMORY ? status : WHERRY_OK;
}

typedef wherry_status (*try_fn)(size_t name, const wherry_value *state, wherry_error *error);

/** Makes the first allocation fail, then the second, and so on, until all succeed. */
static void fail_all(size_t name, try_fn attempt, const wherry_value *state) {
    wherry_status status = WHERRY_NO_MEMORY;
    uint64_t failures = 0;
    for (; status != WHERRY_OK; failures++) {
        wherry_error error = {.message = ""};
        int64_t held = memory.held;
        memory.calls = 0;
        memory.fail = failures + 1;
        status = attempt(name, state, &error);
        memory.fail = 0;
        if (status != WHERRY_OK && (status != WHERRY_NO_MEMORY || error.status != status || memory.held != held ||
                                    scratch_count(&output) != 0)) {
            fail_msg("%s, allocation %d: %s (%s), %d blocks leaked, %zu files left", names[name], (int)failures + 1,
                     wherry_status_name(status), error.message, (int)(memory.held - held), scratch_count(&output));
        }
        assert_int_equal(memory.held, held);
    }
    assert_true(failures > 5);
    scratch_close(&output);
    output = scratch_open();
}

static void test_every_failed_allocation_is_reported(void **state) {
    (void)state;
    folder = scratch_open();
    output = scratch_open();
    json_malloc_t json_malloc;
    json_free_t json_free;
    json_get_alloc_funcs(&json_malloc, &json_free);
    counting_begin(&memory);
    json_set_alloc_funcs(json_allocate, json_release);
    wherry_value *values = make_state();
    for (size_t i = 0; i < NAMES; i++) {
        wherry_file_write_options options = options_of();
        must(wherry_file_write(scratch_file(&folder, names[i]), values, &options, NULL));
        fail_all(i, try_open, values);
        fail_all(i, try_write, values);
        fail_all(i, try_bad, values);
    }
    wherry_value_destroy(values);
    assert_int_equal(memory.held, 0);
    assert_int_equal(memory.wrong, 0);
    json_set_alloc_funcs(json_malloc, json_free);
    wherry_allocator_set(NULL);
    scratch_close(&output);
    scratch_close(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests_name("file_memory", tests, NULL, NULL);
}
