/*
 * Files of every format: a state is read back as it was written. If a format cannot hold a value,
 * the error names it.
 */
#include <errno.h>

#include <wherry/file.h>

#include "support/build.h"
#include "support/random_state.h"
#include "support/scratch_folder.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static wherry_error error;
static scratch folder;

static int set_up(void **state) {
    (void)state;
    folder = scratch_open();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_close(&folder);
    return 0;
}

static wherry_value *tensor(wherry_dtype dtype, int64_t rows, int64_t columns, uint8_t seed) {
    uint64_t nbytes = (uint64_t)(rows * columns) * wherry_dtype_describe(dtype)->bytes;
    return build_tensor(build_storage(nbytes, seed), dtype, 0, 2, SHAPE(rows, columns), NULL);
}

static wherry_file *open_file(const char *path) {
    wherry_file *file;
    wherry_status status = wherry_file_open(path, NULL, &file, &error);
    if (status != WHERRY_OK) {
        fail_msg("%s", error.message);
    }
    return file;
}

static void write_file(const char *path, const wherry_value *state, const wherry_file_write_options *options) {
    if (wherry_file_write(path, state, options, &error) != WHERRY_OK) {
        fail_msg("%s", error.message);
    }
}

/** Writes a state and reads it back. Leaves no other file. */
static void check_round(const char *name, const wherry_value *state, const wherry_value *expected) {
    const char *path = scratch_file(&folder, name);
    write_file(path, state, NULL);
    wherry_file *file = open_file(path);
    if (wherry_value_compare(wherry_file_state(file), expected, WHERRY_COMPARE_NO_SHARING, &error) != WHERRY_OK) {
        fail_msg("%s: %s", name, error.message);
    }
    must(wherry_file_check(file, &error));
    wherry_file_close(file);
    unlink(path);
    assert_int_equal(scratch_count(&folder), 0);
}

/** Writes tensors of every dtype. `known` dtypes must be accepted, and all others refused. */
static void check_dtypes(const char *name, wherry_file_format format, size_t known) {
    wherry_value *state = build_dict(NULL);
    size_t count = 0;
    for (int dtype = 0; wherry_dtype_describe((wherry_dtype)dtype); dtype++) {
        wherry_value *one = build_dict("x", tensor((wherry_dtype)dtype, 3, 2, 1), NULL);
        wherry_status status = wherry_file_accepts(format, one, &error);
        if (status == WHERRY_OK) {
            must(wherry_dict_put(state, wherry_dtype_describe((wherry_dtype)dtype)->name,
                                 tensor((wherry_dtype)dtype, 5, 4, (uint8_t)dtype), &error));
            count++;
        } else {
            assert_int_equal(status, WHERRY_UNSUPPORTED);
            assert_string_equal(error.path, "x");
            assert_non_null(strstr(error.message, wherry_dtype_describe((wherry_dtype)dtype)->name));
            assert_non_null(strstr(error.message, ".wherry"));
            must_fail(WHERRY_UNSUPPORTED, error, wherry_file_write(scratch_file(&folder, name), one, NULL, &error));
        }
        wherry_value_destroy(one);
    }
    assert_int_equal(count, known);
    check_round(name, state, state);
    wherry_value_destroy(state);
}

static void test_every_dtype_is_kept_or_refused(void **state) {
    (void)state;
    check_dtypes("a.safetensors", WHERRY_FILE_SAFETENSORS, 20);
    check_dtypes("a.wherry", WHERRY_FILE_WHERRY, 46);
}

static void test_empty_states_are_kept(void **state) {
    (void)state;
    wherry_value *nothing = build_dict(NULL);
    check_round("a.safetensors", nothing, nothing);
    check_round("a.wherry", nothing, nothing);
    wherry_value_destroy(nothing);
    wherry_value *scalars = build_dict("none", build_tensor(build_storage(0, 0), WHERRY_F32, 0, 2, SHAPE(0, 7), NULL),
                                       "scalar", build_tensor(build_storage(8, 5), WHERRY_F64, 0, 0, NULL, NULL), NULL);
    check_round("a.safetensors", scalars, scalars);
    check_round("a.wherry", scalars, scalars);
    wherry_value_destroy(scalars);
}

/** Names are joined by dots. Metadata stays metadata. */
static void test_nested_names_are_joined(void **state) {
    (void)state;
    wherry_value *nested = build_dict(
        "layers", build_list(build_dict("w", tensor(WHERRY_F32, 2, 2, 1), NULL), tensor(WHERRY_U8, 3, 1, 2), NULL),
        "odd \"\\\n\xC3\xA9", build_object("OrderedDict", build_dict("b", tensor(WHERRY_I64, 1, 1, 3), NULL)),
        "__metadata__", build_dict("format", build_string("pt"), "a\"b", build_string("\xE2\x82\xAC\n"), NULL), NULL);
    wherry_value *flat =
        build_dict("layers.0.w", tensor(WHERRY_F32, 2, 2, 1), "layers.1", tensor(WHERRY_U8, 3, 1, 2),
                   "odd \"\\\n\xC3\xA9.b", tensor(WHERRY_I64, 1, 1, 3), "__metadata__",
                   build_dict("format", build_string("pt"), "a\"b", build_string("\xE2\x82\xAC\n"), NULL), NULL);
    check_round("a.safetensors", nested, flat);
    check_round("a.wherry", nested, nested);
    wherry_value_destroy(nested);
    wherry_value_destroy(flat);
}

/** Only the part of a storage that a view covers is written. */
static void test_only_viewed_bytes_are_written(void **state) {
    (void)state;
    wherry_storage *storage = build_storage(400, 9);
    wherry_value *views = build_dict("a", build_view(storage, WHERRY_F32, 10, 2, SHAPE(2, 3), NULL), "b",
                                     build_view(storage, WHERRY_F32, 16, 1, SHAPE(7), NULL), NULL);
    wherry_value *alone =
        build_dict("a", build_tensor(build_storage(24, (uint8_t)(9 + 7 * 40)), WHERRY_F32, 0, 2, SHAPE(2, 3), NULL),
                   "b", build_tensor(build_storage(28, (uint8_t)(9 + 7 * 64)), WHERRY_F32, 0, 1, SHAPE(7), NULL), NULL);
    check_round("a.safetensors", views, alone);
    wherry_value_destroy(alone);
    wherry_storage_unref(storage);
    wherry_value_destroy(views);
}

static void refuse(wherry_file_format format, wherry_value *value, const char *path, const char *why) {
    must_fail(WHERRY_UNSUPPORTED, error, wherry_file_accepts(format, value, &error));
    assert_string_equal(error.path, path);
    if (!strstr(error.message, why)) {
        fail_msg("the message '%s' lacks '%s'", error.message, why);
    }
    wherry_value_destroy(value);
}

static void test_refuses_what_a_format_cannot_hold(void **state) {
    (void)state;
    wherry_file_format st = WHERRY_FILE_SAFETENSORS;
    wherry_storage *storage = build_storage(400, 9);
    refuse(st, build_dict("a", build_list(build_int(1), NULL), NULL), "a[0]", "int");
    refuse(st, build_list(tensor(WHERRY_U8, 1, 1, 1), build_none(), NULL), "[1]", "none");
    refuse(st, build_dict("a", build_dict(NULL), NULL), "a", "dict");
    refuse(st, tensor(WHERRY_U8, 1, 1, 1), "", "without a name");
    refuse(st, build_dict("t", build_view(storage, WHERRY_F32, 0, 2, SHAPE(3, 4), SHAPE(1, 3)), NULL), "t",
           "contiguous");
    refuse(st, build_dict("t", build_view(storage, WHERRY_F32, 0, 2, SHAPE(3, 4), SHAPE(0, 1)), NULL), "t",
           "contiguous");
    refuse(st,
           build_dict("a", build_view(storage, WHERRY_F32, 0, 1, SHAPE(4), NULL), "b",
                      build_view(storage, WHERRY_F32, 3, 1, SHAPE(4), NULL), NULL),
           "b", "shares memory with 'a'");
    refuse(st,
           build_dict("a.b", tensor(WHERRY_U8, 1, 1, 1), "a", build_dict("b", tensor(WHERRY_U8, 1, 1, 1), NULL), NULL),
           "a.b", "name of another value");
    refuse(st, build_dict("__metadata__", build_dict("a", build_int(1), NULL), NULL), "__metadata__.a", "metadata");
    refuse(st, build_dict("__metadata__", tensor(WHERRY_U8, 1, 1, 1), NULL), "__metadata__", "metadata");
    wherry_value *numbered = build_dict(NULL);
    must(wherry_dict_set(numbered, build_int(7), tensor(WHERRY_U8, 1, 1, 1), &error));
    refuse(st, numbered, "{7}", "not a string");
    wherry_value *plain = tensor(WHERRY_C64, 1, 1, 1);
    wherry_tensor conjugate = *wherry_tensor_get(plain);
    conjugate.flags = WHERRY_TENSOR_CONJ;
    wherry_value *flagged;
    must(wherry_tensor_create(&conjugate, &flagged, &error));
    wherry_value_destroy(plain);
    refuse(st, build_dict("z", flagged, NULL), "z", "conj");
    refuse(WHERRY_FILE_BYTES, build_dict(NULL), "", "one contiguous uint8 tensor");
    refuse(WHERRY_FILE_BYTES, build_view(storage, WHERRY_U8, 0, 1, SHAPE(200), SHAPE(2)), "", "contiguous");
    refuse(WHERRY_FILE_BYTES, build_view(storage, WHERRY_U8, 0, 1, SHAPE(4000), SHAPE(0)), "", "contiguous");
    refuse(st, build_dict("a", build_view(storage, WHERRY_F32, 0, 3, SHAPE(2, 3, 4), SHAPE(1, 2, 6)), NULL), "a",
           "contiguous");
    refuse(st, build_dict("a", build_view(storage, WHERRY_F32, 0, 3, SHAPE(2, 3, 4), SHAPE(4, 8, 1)), NULL), "a",
           "contiguous");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_file_accepts(WHERRY_FILE_AUTO, NULL, &error));
    wherry_storage_unref(storage);
}

/** Wherry's own files hold any state, with shared storages. */
static void test_native_format_holds_any_state(void **state) {
    (void)state;
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.flags = WHERRY_FILE_DIGESTS;
    for (uint64_t seed = 0; seed < 60; seed++) {
        options.rank = (int64_t)seed % 4 - 1;
        wh_random random = {seed};
        wherry_value *source = wh_random_state(&random);
        const char *path = scratch_file(&folder, "a.wherry");
        write_file(path, source, &options);
        wherry_file *file = open_file(path);
        if (wherry_value_compare(wherry_file_state(file), source, WHERRY_COMPARE_ALL, &error) != WHERRY_OK) {
            fail_msg("seed %d: %s", (int)seed, error.message);
        }
        must(wherry_file_verify(file, &error));
        wherry_file_summary figures;
        wherry_file_summarize(file, &figures);
        assert_int_equal(figures.rank, options.rank);
        wherry_file_close(file);
        wherry_value_destroy(source);
    }
}

static void test_states_are_split_into_shards(void **state) {
    (void)state;
    wherry_value *source =
        build_dict("a", tensor(WHERRY_U8, 10, 10, 1), "b", tensor(WHERRY_F32, 10, 10, 2), "c",
                   tensor(WHERRY_U8, 5, 10, 3), "d", tensor(WHERRY_F64, 5, 10, 4), "e", tensor(WHERRY_U8, 1, 1, 5),
                   "__metadata__", build_dict("format", build_string("pt"), NULL), NULL);
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.shard_bytes = 460;
    const char *path = scratch_file(&folder, "model.safetensors.index.json");
    write_file(path, source, &options);
    /* There are the shards a, bc and de, and the index. */
    assert_int_equal(scratch_count(&folder), 4);
    wherry_file *file = open_file(path);
    must(wherry_value_compare(wherry_file_state(file), source, WHERRY_COMPARE_ALL, &error));
    wherry_file_summary figures;
    wherry_file_summarize(file, &figures);
    assert_int_equal(figures.format, WHERRY_FILE_SHARDED);
    assert_int_equal(figures.files, 3);
    assert_int_equal(figures.tensors, 5);
    assert_int_equal(figures.file_bytes - figures.header_bytes, 100 + 400 + 50 + 400 + 1);
    assert_false(figures.has_digests);
    must_fail(WHERRY_UNSUPPORTED, error, wherry_file_verify(file, &error));
    wherry_file_close(file);
    file = open_file(scratch_file(&folder, "model-00002-of-00003.safetensors"));
    assert_int_equal(wherry_dict_count(wherry_file_state(file)), 3);
    wherry_file_close(file);
    options.format = WHERRY_FILE_SHARDED;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_file_write(scratch_file(&folder, "x.json"), source, &options, &error));
    wherry_value_destroy(source);
}

static void test_formats_have_names(void **state) {
    (void)state;
    assert_int_equal(wherry_file_format_of("a/b.safetensors"), WHERRY_FILE_SAFETENSORS);
    assert_int_equal(wherry_file_format_of("b.safetensors.index.json"), WHERRY_FILE_SHARDED);
    assert_int_equal(wherry_file_format_of("b.npz"), WHERRY_FILE_AUTO);
    assert_int_equal(wherry_file_format_of(".wherry"), WHERRY_FILE_WHERRY);
    assert_int_equal(wherry_file_format_of("b.txt"), WHERRY_FILE_AUTO);
    assert_string_equal(wherry_file_format_name(WHERRY_FILE_WHERRY), "wherry");
    assert_string_equal(wherry_file_format_name((wherry_file_format)77), "?");
}

/** A mapping lives as long as its last storage. A private mapping can be written. */
static void test_mapping_lives_as_long_as_its_storages(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", tensor(WHERRY_U8, 100, 100, 1), NULL);
    const char *path = scratch_file(&folder, "m.safetensors");
    write_file(path, source, NULL);
    wherry_file_open_options options;
    wherry_file_open_options_init(&options);
    options.flags = WHERRY_FILE_PRIVATE;
    wherry_file *file;
    wherry_value *copy;
    must(wherry_file_open(path, &options, &file, &error));
    must(wherry_value_copy(wherry_file_state(file), &copy, &error));
    wherry_file_close(file);
    must(wherry_value_compare(copy, source, WHERRY_COMPARE_ALL, &error));
    memset(wherry_storage_data(wherry_tensor_get(wherry_dict_get(copy, "a"))->storage), 0, 10000);
    wherry_value_destroy(copy);
    file = open_file(path);
    must(wherry_value_compare(wherry_file_state(file), source, WHERRY_COMPARE_ALL, &error));
    must(wherry_file_check(file, &error));
    assert_int_equal(truncate(path, 200), 0);
    must_fail(WHERRY_TRUNCATED, error, wherry_file_check(file, &error));
    assert_int_equal(error.offset, 200);
    assert_int_equal(truncate(path, 20000), 0);
    must_fail(WHERRY_CORRUPT, error, wherry_file_check(file, &error));
    wherry_file_close(file);
    options.format = WHERRY_FILE_WHERRY;
    must_fail(WHERRY_MALFORMED, error, wherry_file_open(path, &options, &file, &error));
    wherry_value_destroy(source);
    must_fail(WHERRY_SYSTEM, error, wherry_file_open(scratch_file(&folder, "none"), NULL, &file, &error));
    assert_int_equal(error.errnum, ENOENT);
    must_fail(WHERRY_SYSTEM, error, wherry_file_open(folder.path, NULL, &file, &error));
    options.struct_size = 1000;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_file_open(path, &options, &file, &error));
}

/** Flips one byte of a file. */
static void damage(const char *path, long offset) {
    FILE *out = fopen(path, "r+b");
    assert_non_null(out);
    fseek(out, offset, SEEK_SET);
    int byte = fgetc(out);
    fseek(out, offset, SEEK_SET);
    fputc(byte ^ 1, out);
    fclose(out);
}

static void test_finds_damaged_bytes(void **state) {
    (void)state;
    wherry_value *source =
        build_dict("a", tensor(WHERRY_U8, 100, 100, 1), "b", build_list(tensor(WHERRY_F64, 100, 2, 2), NULL), NULL);
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.flags = WHERRY_FILE_DIGESTS | WHERRY_FILE_SYNC;
    wherry_file_open_options checked;
    wherry_file_open_options_init(&checked);
    checked.flags = WHERRY_FILE_VERIFY;
    const char *path = scratch_file(&folder, "a.wherry");
    wherry_file *file;
    write_file(path, source, &options);
    must(wherry_file_open(path, &checked, &file, &error));
    wherry_file_summary figures;
    wherry_file_summarize(file, &figures);
    assert_true(figures.has_digests && figures.file_bytes > 11600);
    wherry_file_close(file);
    damage(path, (long)figures.file_bytes - 1600 - 9000);
    file = open_file(path);
    must_fail(WHERRY_CORRUPT, error, wherry_file_verify(file, &error));
    assert_string_equal(error.path, "a");
    wherry_file_close(file);
    must_fail(WHERRY_CORRUPT, error, wherry_file_open(path, &checked, &file, &error));
    damage(path, 70);
    must_fail(WHERRY_CORRUPT, error, wherry_file_open(path, NULL, &file, &error));
    wherry_value_destroy(source);
}

/** The format `bytes` holds any file, and is used only on request. */
static void test_format_bytes_holds_any_file(void **state) {
    (void)state;
    const char *path = scratch_file(&folder, "any");
    wherry_value *bytes = build_tensor(build_storage(1000, 3), WHERRY_U8, 0, 1, SHAPE(1000), NULL);
    wherry_file_write_options options;
    wherry_file_open_options how;
    wherry_file *file;
    wherry_file_write_options_init(&options);
    wherry_file_open_options_init(&how);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_file_write(path, bytes, &options, &error));
    options.format = how.format = WHERRY_FILE_BYTES;
    write_file(path, bytes, &options);
    must_fail(WHERRY_MALFORMED, error, wherry_file_open(path, NULL, &file, &error));
    must(wherry_file_open(path, &how, &file, &error));
    must(wherry_value_compare(wherry_file_state(file), bytes, WHERRY_COMPARE_ALL, &error));
    assert_string_equal(wherry_file_path(file, 0), path);
    assert_null(wherry_file_path(file, 1));
    wherry_file_summary summary;
    wherry_file_summarize(file, &summary);
    assert_true(summary.format == WHERRY_FILE_BYTES && summary.tensors == 1 && summary.file_bytes == 1000);
    wherry_file_close(file);
    wherry_value *matrix = tensor(WHERRY_U8, 2, 3, 1);
    must_fail(WHERRY_UNSUPPORTED, error, wherry_file_accepts(WHERRY_FILE_BYTES, matrix, &error));
    wherry_value *nothing = build_tensor(build_storage(0, 1), WHERRY_U8, 0, 1, SHAPE(0), NULL);
    write_file(path, nothing, &options);
    must(wherry_file_open(path, &how, &file, &error));
    must(wherry_value_compare(wherry_file_state(file), nothing, WHERRY_COMPARE_ALL, &error));
    wherry_file_close(file);
    wherry_value_destroy(matrix);
    wherry_value_destroy(nothing);
    wherry_value_destroy(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_dtype_is_kept_or_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_empty_states_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nested_names_are_joined, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_only_viewed_bytes_are_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_what_a_format_cannot_hold, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_native_format_holds_any_state, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_states_are_split_into_shards, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_format_bytes_holds_any_file, set_up, tear_down),
        cmocka_unit_test(test_formats_have_names),
        cmocka_unit_test_setup_teardown(test_mapping_lives_as_long_as_its_storages, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_finds_damaged_bytes, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("file_formats", tests, NULL, NULL);
}
