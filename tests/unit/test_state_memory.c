/*
 * Makes each allocation fail in turn, for each function on values, paths and states. The result is
 * WHERRY_NO_MEMORY, nothing leaks, nothing is written, and the caller still owns the arguments.
 */
#include "../support/build.h"

#include <stdio.h>

#include "../support/counting_allocator.h"

static counting memory;

/** The arguments of the functions, built again for each attempt. */
typedef struct bench {
    wherry_value *tree;   /**< A list with values of every kind. */
    wherry_value *dict;   /**< A dict with as many keys as fit without an index. */
    wherry_value *list;   /**< Empty. */
    wherry_value *key;    /**< A value without an owner, used as a key. */
    wherry_value *item;   /**< A value without an owner, used as an item. */
    wherry_value *tensor; /**< A tensor without an owner. */
    wherry_mesh *mesh;
    wherry_path *path;
    wherry_flat *flat;
    wherry_value *leaves[8]; /**< Values without owners; one per leaf of `flat`. */
    size_t leaf_count;
} bench;

static const int64_t shape[] = {4};
static const int64_t offsets[] = {0};
static const int64_t one[] = {1};
static const wherry_placement partial = {WHERRY_PARTIAL, 0, 0, "sum"};

static wherry_status create_dtensor(wherry_value *local, wherry_mesh *mesh, wherry_value **value_p,
                                    wherry_error *error) {
    wherry_dtensor dtensor = {local, mesh, &partial, WHERRY_U8, 0, 1, shape, one};
    return wherry_dtensor_create(&dtensor, value_p, error);
}

static wherry_status create_sharded(wherry_value *local, wherry_value **value_p, wherry_error *error) {
    wherry_shard shard = {local, {offsets, shape, {0, {WHERRY_DEVICE_CPU, -1}}}};
    wherry_sharded sharded = {.dtype = WHERRY_U8, .ndim = 1, .shape = shape, .shard_count = 1, .shards = &shard};
    return wherry_sharded_create(&sharded, value_p, error);
}

static wherry_value *new_tensor(void) {
    return build_tensor(build_storage(4, 0), WHERRY_U8, 0, 1, shape, NULL);
}

static void set_up(bench *b) {
    wherry_value *dtensor;
    wherry_value *sharded;
    b->mesh = build_mesh(1, one);
    must(create_dtensor(new_tensor(), b->mesh, &dtensor, NULL));
    must(create_sharded(new_tensor(), &sharded, NULL));
    b->tree = build_list(build_tuple(build_bigint(true, 0xFF, 9), NULL), dtensor, sharded,
                         build_object("T", build_dict("x", build_string("text"), NULL)), NULL);
    b->dict = build_dict("0", build_none(), "1", build_none(), "2", build_none(), "3", build_none(), "4", build_none(),
                         "5", build_none(), "6", build_none(), "7", build_none(), NULL);
    b->list = build_list(NULL);
    b->key = build_string("key");
    b->item = build_int(1);
    b->tensor = new_tensor();
    must(wherry_path_parse("a[0]{b\"x\"}", 10, &b->path, NULL));
    must(wherry_flatten(b->tree, &b->flat, NULL));
    b->leaf_count = wherry_flat_count(b->flat);
    for (size_t i = 0; i < b->leaf_count; i++) {
        b->leaves[i] = build_int((int64_t)i);
    }
}

static void tear_down(bench *b) {
    wherry_flat_destroy(b->flat);
    for (size_t i = 0; i < b->leaf_count; i++) {
        wherry_value_destroy(b->leaves[i]);
    }
    wherry_value_destroy(b->tree);
    wherry_value_destroy(b->dict);
    wherry_value_destroy(b->list);
    wherry_value_destroy(b->key);
    wherry_value_destroy(b->item);
    wherry_value_destroy(b->tensor);
    wherry_mesh_unref(b->mesh);
    wherry_path_destroy(b->path);
}

/** The results of a call; all NULL if it failed. */
typedef struct made {
    wherry_value *value;
    wherry_storage *storage;
    wherry_mesh *mesh;
    wherry_path *path;
    wherry_flat *flat;
    wherry_prepared *prepared;
    char *text;
} made;

enum { CALLS = 30 };

static wherry_status call_scalar(int number, made *m, wherry_error *error) {
    switch (number) {
    case 0:
        return wherry_none_create(&m->value, error);
    case 1:
        return wherry_bool_create(true, &m->value, error);
    case 2:
        return wherry_int_create(1, &m->value, error);
    case 3:
        return wherry_float_create(1, &m->value, error);
    case 4:
        return wherry_complex_create(1, 2, &m->value, error);
    case 5:
        return wherry_bigint_create(false, "123456789", 9, &m->value, error);
    case 6:
        return wherry_bigint_create(false, "1", 1, &m->value, error);
    case 7:
        return wherry_string_create("a", 1, &m->value, error);
    case 8:
        return wherry_bytes_create("a", 1, &m->value, error);
    case 9:
        return wherry_list_create(&m->value, error);
    case 10:
        return wherry_tuple_create(&m->value, error);
    default:
        return wherry_dict_create(&m->value, error);
    }
}

/** Functions that take an argument over set it to NULL in the bench on success. */
static wherry_status call_taking(int number, bench *b, made *m, wherry_error *error) {
    wherry_status status;
    switch (number) {
    case 12:
        status = wherry_object_create("T", b->item, &m->value, error);
        break;
    case 13:
        status = wherry_sequence_append(b->list, b->item, error);
        break;
    case 14:
        status = wherry_dict_set(b->dict, b->key, b->item, error);
        b->key = status == WHERRY_OK ? NULL : b->key;
        break;
    case 15:
        status = wherry_dict_put(b->dict, "new", b->item, error);
        break;
    case 16:
        status = create_dtensor(b->tensor, b->mesh, &m->value, error);
        b->tensor = status == WHERRY_OK ? NULL : b->tensor;
        return status;
    case 17:
        status = create_sharded(b->tensor, &m->value, error);
        b->tensor = status == WHERRY_OK ? NULL : b->tensor;
        return status;
    default:
        status = wherry_unflatten(b->flat, b->leaves, b->leaf_count, &m->value, error);
        b->leaf_count = status == WHERRY_OK ? 0 : b->leaf_count;
        return status;
    }
    b->item = status == WHERRY_OK ? NULL : b->item;
    return status;
}

static wherry_status call_reading(int number, bench *b, made *m, wherry_error *error) {
    static char byte;
    const wherry_mesh_info *info = wherry_mesh_get(b->mesh);
    const wherry_step step = {b->key, 0};
    wherry_value *found;
    switch (number) {
    case 19:
        return wherry_value_copy(b->tree, &m->value, error);
    case 20:
        return wherry_tensor_create(wherry_tensor_get(b->tensor), &m->value, error);
    case 21:
        return wherry_storage_wrap(&byte, 1, wherry_device_cpu(), NULL, NULL, &m->storage, error);
    case 22:
        return wherry_mesh_create(info, &m->mesh, error);
    case 23:
        return wherry_path_create(&step, 1, &m->path, error);
    case 24:
        return wherry_path_parse("a[0]{b\"x\"}{0xffffffffffffffff}{1.5}[\"\"]", 39, &m->path, error);
    case 25:
        return wherry_path_format(b->path, &m->text, error);
    case 26:
        return wherry_value_find(b->tree, "[3].x", &found, error);
    case 27:
        return wherry_flatten(b->tree, &m->flat, error);
    case 28:
        return wherry_value_compare(b->tree, b->tree, WHERRY_COMPARE_ALL, error);
    default:
        return wherry_prepare(b->tree, NULL, &m->prepared, error);
    }
}

static wherry_status call(int number, bench *b, made *m, wherry_error *error) {
    return number < 12 ? call_scalar(number, m, error)
                       : (number < 19 ? call_taking : call_reading)(number, b, m, error);
}

static void destroy_made(made *m) {
    wherry_prepared_destroy(m->prepared);
    wherry_value_destroy(m->value);
    wherry_storage_unref(m->storage);
    wherry_mesh_unref(m->mesh);
    wherry_path_destroy(m->path);
    wherry_flat_destroy(m->flat);
    wherry_free(m->text);
}

/** One attempt. @return false once the call succeeds. */
static bool attempt(int number, uint64_t fail_at) {
    bench b;
    made m = {0};
    static const made nothing = {0};
    wherry_error error = {.message = ""};
    set_up(&b);
    int64_t held = memory.held;
    memory.calls = 0;
    memory.fail = fail_at;
    wherry_status status = call(number, &b, &m, &error);
    memory.fail = 0;
    if (status != WHERRY_OK) {
        if (status != WHERRY_NO_MEMORY || error.status != status || memory.held != held) {
            fail_msg("call %d, allocation %llu: %s, %lld blocks leaked", number, (unsigned long long)fail_at,
                     wherry_status_name(status), (long long)(memory.held - held));
        }
        assert_memory_equal(&m, &nothing, sizeof(m));
        assert_int_equal(wherry_dict_count(b.dict), 8);
        must(call(number, &b, &m, NULL));
    }
    destroy_made(&m);
    tear_down(&b);
    assert_int_equal(memory.held, 0);
    return status != WHERRY_OK;
}

static void test_every_failed_allocation_is_reported(void **state) {
    (void)state;
    counting_begin(&memory);
    for (int number = 0; number < CALLS; number++) {
        uint64_t failures = 0;
        while (attempt(number, failures + 1)) {
            failures++;
        }
        if (failures == 0) {
            fail_msg("call %d allocates nothing", number);
        }
    }
    assert_int_equal(memory.wrong, 0);
    wherry_allocator_set(NULL);
}

static void test_failed_dump_is_reported(void **state) {
    (void)state;
    counting_begin(&memory);
    FILE *out = fopen("/dev/null", "w");
    assert_non_null(out);
    uint64_t failures = 0;
    for (wherry_status status = WHERRY_NO_MEMORY; status != WHERRY_OK; failures++) {
        bench b;
        set_up(&b);
        int64_t held = memory.held;
        memory.calls = 0;
        memory.fail = failures + 1;
        status = wherry_value_dump(b.tree, out, NULL);
        memory.fail = 0;
        assert_true(status == WHERRY_OK || status == WHERRY_NO_MEMORY);
        assert_int_equal(memory.held, held);
        tear_down(&b);
    }
    assert_true(failures > 1);
    fclose(out);
    assert_int_equal(memory.held, 0);
    wherry_allocator_set(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_failed_allocation_is_reported),
        cmocka_unit_test(test_failed_dump_is_reported),
    };
    return cmocka_run_group_tests_name("state_memory", tests, NULL, NULL);
}
