/*
 * Writing files: a receive writes directly into a file. A name never refers to an incomplete file.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <wherry/file.h>

#include "conformance/hub_place.h"
#include "conformance/transfer_world.h"
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

static wherry_value *bytes(int64_t count, uint8_t seed) {
    return build_tensor(build_storage((uint64_t)count, seed), WHERRY_U8, 0, 1, &count, NULL);
}

static wherry_file_write_options with_flags(uint32_t flags) {
    wherry_file_write_options options;
    wherry_file_write_options_init(&options);
    options.flags = flags;
    return options;
}

/** Fails unless the file holds that state. */
static void expect_file(const char *path, const wherry_value *state) {
    wherry_file *file;
    if (wherry_file_open(path, NULL, &file, &error) != WHERRY_OK) {
        fail_msg("%s", error.message);
    }
    if (wherry_value_compare(wherry_file_state(file), state, WHERRY_COMPARE_ALL, &error) != WHERRY_OK) {
        fail_msg("%s: %s", path, error.message);
    }
    wherry_file_close(file);
}

static wherry_file_writer *begin(const char *path, const wherry_value *state, uint32_t flags) {
    wherry_file_writer *writer;
    wherry_file_write_options options = with_flags(flags);
    if (wherry_file_writer_create(path, state, &options, &writer, &error) != WHERRY_OK) {
        fail_msg("%s", error.message);
    }
    return writer;
}

static void *data_of(const wherry_value *state, const char *name) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, name))->storage);
}

/* ---- receiving into a file ---- */

typedef struct landing {
    const char *path;
    wherry_file_write_options options;
    wherry_file_writer *writer;
} landing;

static wherry_status land(void *context, const wherry_value *state, const wherry_value **target_p) {
    landing *l = context;
    wherry_status status = wherry_file_writer_create(l->path, state, &l->options, &l->writer, &error);
    if (status == WHERRY_OK) {
        *target_p = wherry_file_writer_target(l->writer);
    }
    return status;
}

static bool has_no_shards(const wherry_value *state) {
    wherry_flat *flat;
    bool none = true;
    must(wherry_flatten(state, &flat, &error));
    for (size_t i = 0; i < wherry_flat_count(flat); i++) {
        none = none && wherry_value_kind(wherry_flat_leaf(flat, i)) != WHERRY_KIND_SHARDED;
    }
    wherry_flat_destroy(flat);
    return none;
}

/** Receives into a file. @return the number of bytes that moved. */
static uint64_t receive_file(const wherry_value *source, landing *l, uint32_t flags) {
    ferry_world world = ferry_open();
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.accept = land;
    calls[1].options.accept_context = l;
    calls[1].options.flags = flags;
    ferry_run(calls, 2);
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    must(wherry_file_writer_finish(l->writer, &error));
    wherry_file_writer_destroy(l->writer);
    /*
     * The received state outlives the writer. States with a ShardedTensor differ, because it names
     * the receiving rank.
     */
    if (has_no_shards(source) &&
        wherry_value_compare(calls[1].received, source, WHERRY_COMPARE_NO_SHARING, &error) != WHERRY_OK) {
        fail_msg("%s", error.message);
    }
    wherry_value_destroy(calls[1].received);
    ferry_close(&world);
    return calls[1].stats.bytes_moved;
}

static void test_receives_into_a_file(void **state) {
    (void)state;
    wherry_value *source =
        build_dict("a", bytes(5 << 20, 1), "b", bytes(77, 2), "c", bytes(3 << 20, 3), "none", bytes(0, 4),
                   "__metadata__", build_dict("format", build_string("pt"), NULL), NULL);
    static const char *const names[] = {"a.safetensors", "b.safetensors.index.json", "c.wherry"};
    for (int i = 0; i < 3; i++) {
        landing l = {scratch_file(&folder, names[i]), with_flags(WHERRY_FILE_DIGESTS), NULL};
        l.options.shard_bytes = 4 << 20;
        receive_file(source, &l, 0);
        expect_file(l.path, source);
    }
    assert_int_equal(scratch_count(&folder), 1 + 3 + 1);
    wherry_value_destroy(source);
}

static void test_receives_any_state_into_a_file(void **state) {
    (void)state;
    for (uint64_t seed = 100; seed < 160; seed++) {
        wh_random random = {seed};
        wherry_value *source = wh_random_state(&random);
        landing l = {scratch_file(&folder, "a.wherry"), with_flags(WHERRY_FILE_DIGESTS), NULL};
        receive_file(source, &l, WHERRY_RECV_ANY_BOX); /* The file has the part of rank 0. */
        expect_file(l.path, source);
        wherry_value_destroy(source);
    }
}

/** Bytes that an earlier receive left in the part file do not move again. */
static void test_resume_moves_only_the_rest(void **state) {
    (void)state;
    enum { LARGE = 24 << 20 };
    wherry_value *source = build_dict("a", bytes(LARGE, 1), "b", bytes(77, 2), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    wherry_file_writer *writer = begin(path, source, WHERRY_FILE_KEEP_PART);
    assert_false(wherry_file_writer_resumed(writer));
    memcpy(data_of(wherry_file_writer_target(writer), "a"), data_of(source, "a"), LARGE / 2);
    wherry_value *kept;
    /* The copy does not lock the part file. */
    must(wherry_value_copy(wherry_file_writer_target(writer), &kept, &error));
    wherry_file_writer_destroy(writer);
    assert_int_equal(scratch_count(&folder), 1);
    assert_int_equal(access(path, F_OK), -1);

    writer = begin(path, source, WHERRY_FILE_KEEP_PART | WHERRY_FILE_RESUME);
    assert_true(wherry_file_writer_resumed(writer));
    assert_memory_equal(data_of(wherry_file_writer_target(writer), "a"), data_of(source, "a"), LARGE / 2);
    wherry_file_writer_destroy(writer);
    wherry_value_destroy(kept);

    landing l = {path, with_flags(WHERRY_FILE_RESUME), NULL};
    uint64_t moved = receive_file(source, &l, WHERRY_RECV_COMPARE);
    assert_true(moved <= LARGE / 2 + (4 << 20));
    expect_file(path, source);
    assert_int_equal(scratch_count(&folder), 1);

    /* The part file of another state is not resumed. */
    writer = begin(path, source, WHERRY_FILE_KEEP_PART);
    memset(data_of(wherry_file_writer_target(writer), "b"), 7, 77);
    wherry_file_writer_destroy(writer);
    wherry_value *other = build_dict("a", bytes(LARGE, 1), "B", bytes(77, 2), NULL);
    writer = begin(path, other, WHERRY_FILE_RESUME);
    assert_false(wherry_file_writer_resumed(writer));
    assert_int_equal(*(char *)data_of(wherry_file_writer_target(writer), "B"), 0);
    wherry_file_writer_destroy(writer);
    assert_int_equal(scratch_count(&folder), 1);
    wherry_value_destroy(other);
    wherry_value_destroy(source);
}

/**
 * Resuming reserves disk space that the earlier writer could not get. A writer that gets no space
 * leaves no part file.
 */
static void test_resuming_reserves_space(void **state) {
    (void)state;
    enum { LARGE = 1 << 20 };
    wherry_value *source = bytes(LARGE, 1);
    const char *path = scratch_file(&folder, "a.bin");
    const char *part = scratch_file(&folder, ".a.bin.part");
    wherry_file_write_options options = with_flags(WHERRY_FILE_KEEP_PART | WHERRY_FILE_RESUME);
    wherry_file_writer *writer;
    options.format = WHERRY_FILE_BYTES;
    int hole = open(part, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(hole, LARGE), 0);
    close(hole);
    must(wherry_file_writer_create(path, source, &options, &writer, &error));
    assert_true(wherry_file_writer_resumed(writer));
    struct stat info;
    assert_int_equal(stat(part, &info), 0);
    assert_true(info.st_blocks * 512 >= LARGE);
    wherry_file_writer_destroy(writer);
    assert_int_equal(scratch_count(&folder), 1);
    unlink(part);

    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 16, before.rlim_max});
    wherry_status status = wherry_file_writer_create(path, source, &options, &writer, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, WHERRY_SYSTEM);
    assert_int_equal(scratch_count(&folder), 0);
    wherry_value_destroy(source);
}

/**
 * If a file is truncated while the kernel reads it for a send, both sides fail with an error,
 * without a signal.
 */
static void test_truncation_while_sending_is_an_error(void **state) {
    (void)state;
    enum { LARGE = 16 << 20 };
    wherry_value *source = build_dict("a", bytes(LARGE, 1), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    must(wherry_file_write(path, source, NULL, &error));
    wherry_file *file;
    must(wherry_file_open(path, NULL, &file, &error));
    assert_int_equal(truncate(path, LARGE / 2), 0);
    const char *lane = ferry_lane;
    ferry_lane = "cma";
    ferry_world world = ferry_open();
    ferry_call calls[] = {ferry_send(&world, 0, 1, wherry_file_state(file)), ferry_receive(&world, 1, 0)};
    calls[0].options.verify = calls[1].options.verify = WHERRY_VERIFY_OFF;
    ferry_run(calls, 2);
    assert_int_not_equal(calls[0].status, WHERRY_OK);
    assert_int_equal(calls[1].status, WHERRY_OUT_OF_BOUNDS);
    must_fail(WHERRY_TRUNCATED, error, wherry_file_check(file, &error));
    ferry_close(&world);
    ferry_lane = lane;
    wherry_file_close(file);
    wherry_value_destroy(source);
}

/* ---- complete or absent ---- */

static void test_abandoned_file_is_removed(void **state) {
    (void)state;
    wherry_value *one = build_dict("a", bytes(1000, 1), NULL);
    wherry_value *two = build_dict("a", bytes(2000, 2), NULL);
    const char *path = scratch_file(&folder, "a.wherry");
    must(wherry_file_write(path, one, NULL, &error));
    wherry_file_writer *writer = begin(path, two, 0);
    assert_int_equal(scratch_count(&folder), 2);
    expect_file(path, one);
    wherry_file_writer_destroy(writer);
    assert_int_equal(scratch_count(&folder), 1);
    expect_file(path, one);
    writer = begin(path, two, WHERRY_FILE_SYNC);
    memcpy(data_of(wherry_file_writer_target(writer), "a"), data_of(two, "a"), 2000);
    must(wherry_file_writer_finish(writer, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_file_writer_finish(writer, &error));
    wherry_file_writer_destroy(writer);
    wherry_file_writer_destroy(NULL);
    assert_int_equal(scratch_count(&folder), 1);
    expect_file(path, two);
    wherry_value_destroy(one);
    wherry_value_destroy(two);
}

/** A killed process leaves its part file, and the next writer takes it over. */
static void test_next_writer_takes_over_the_part(void **state) {
    (void)state;
    wherry_value *one = build_dict("a", bytes(1000, 1), NULL);
    wherry_value *two = build_dict("a", bytes(2000, 2), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    must(wherry_file_write(path, one, NULL, &error));
    pid_t child = fork();
    if (child == 0) {
        wherry_file_writer *writer;
        if (wherry_file_writer_create(path, two, NULL, &writer, NULL) == WHERRY_OK) {
            memset(data_of(wherry_file_writer_target(writer), "a"), 9, 1500);
            raise(SIGKILL);
        }
        _exit(1);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    assert_int_equal(scratch_count(&folder), 2);
    expect_file(path, one);
    must(wherry_file_write(path, two, NULL, &error));
    assert_int_equal(scratch_count(&folder), 1);
    expect_file(path, two);
    wherry_value_destroy(one);
    wherry_value_destroy(two);
}

static void test_refuses_a_second_writer(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", bytes(1000, 1), NULL);
    const char *path = scratch_file(&folder, "a.wherry");
    wherry_file_writer *first = begin(path, source, 0);
    wherry_file_writer *second = NULL;
    must_fail(WHERRY_REFUSED, error, wherry_file_writer_create(path, source, NULL, &second, &error));
    assert_null(second);
    assert_int_equal(scratch_count(&folder), 1); /* This is the part file of the first writer. */
    wherry_file_writer_destroy(first);
    first = begin(path, source, 0);
    wherry_file_writer_destroy(first);
    wherry_value_destroy(source);
}

static void test_reports_files_that_cannot_be_created(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", bytes(1 << 20, 1), NULL);
    wherry_file_writer *writer;
    must_fail(WHERRY_SYSTEM, error, wherry_file_write(scratch_file(&folder, "none/a.wherry"), source, NULL, &error));
    assert_int_equal(error.errnum, ENOENT);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_file_write(scratch_file(&folder, "a.txt"), source, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_file_write(scratch_file(&folder, ""), source, NULL, &error));
    wherry_file_write_options options = with_flags(1 << 20);
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_file_write(scratch_file(&folder, "a.wherry"), source, &options, &error));

    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 16, before.rlim_max});
    wherry_status status = wherry_file_writer_create(scratch_file(&folder, "a.wherry"), source, NULL, &writer, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, WHERRY_SYSTEM);
    assert_int_equal(error.errnum, EFBIG);

    const char *path = scratch_file(&folder, "dir.wherry");
    mkdir(path, 0700);
    must_fail(WHERRY_SYSTEM, error, wherry_file_write(path, source, NULL, &error));
    assert_non_null(strstr(error.message, path));
    rmdir(path);
    assert_int_equal(scratch_count(&folder), 0);
    wherry_value_destroy(source);
}

/** The index is renamed last. Until then there is no checkpoint. */
static void test_index_is_renamed_last(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", bytes(1000, 1), "b", bytes(1000, 2), NULL);
    wherry_file_write_options options = with_flags(0);
    options.shard_bytes = 1000;
    const char *path = scratch_file(&folder, "m.safetensors.index.json");
    const char *obstacle = scratch_file(&folder, "m-00002-of-00002.safetensors");
    mkdir(obstacle, 0700);
    wherry_file_writer *writer;
    must(wherry_file_writer_create(path, source, &options, &writer, &error));
    must_fail(WHERRY_SYSTEM, error, wherry_file_writer_finish(writer, &error));
    assert_int_equal(access(path, F_OK), -1);
    rmdir(obstacle);
    must(wherry_file_writer_finish(writer, &error)); /* A second finish succeeds. */
    assert_int_equal(access(path, F_OK), 0);
    wherry_file_writer_destroy(writer);
    assert_int_equal(scratch_count(&folder), 3);
    wherry_value_destroy(source);
}

static void test_file_has_the_requested_mode(void **state) {
    (void)state;
    wherry_value *source = build_dict(NULL);
    wherry_file_write_options options = with_flags(0);
    const char *path = scratch_file(&folder, "a.safetensors");
    struct stat info;
    mode_t mask = umask(0022);
    options.mode = 0640;
    must(wherry_file_write(path, source, &options, &error));
    umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    wherry_value_destroy(source);
}

static mode_t mode_of(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_mode & 0777;
}

static void test_a_replaced_file_keeps_its_mode(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", bytes(100, 1), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    must(wherry_file_write(path, source, NULL, &error));
    chmod(path, 0600);
    wherry_file_writer *writer = begin(path, source, 0);
    assert_int_equal(mode_of(scratch_file(&folder, ".a.safetensors.part")), 0600);
    wherry_file_writer_destroy(writer);
    must(wherry_file_write(path, source, NULL, &error));
    assert_int_equal(mode_of(path), 0600);
    wherry_value_destroy(source);
}

/** Neither a file that exists is replaced, nor one that appears before the end. */
static void test_a_new_file_replaces_nothing(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", bytes(100, 1), NULL);
    wherry_value *other = build_dict("a", bytes(100, 2), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    wherry_file_write_options options = with_flags(WHERRY_FILE_NEW);
    wherry_file_writer *writer = begin(path, source, WHERRY_FILE_NEW);
    must(wherry_file_write(scratch_file(&folder, "b.safetensors"), other, &options, &error));
    assert_int_equal(rename(scratch_file(&folder, "b.safetensors"), path), 0);
    must_fail(WHERRY_SYSTEM, error, wherry_file_writer_finish(writer, &error));
    assert_int_equal(error.errnum, EEXIST);
    wherry_file_writer_destroy(writer);
    expect_file(path, other);
    must_fail(WHERRY_SYSTEM, error, wherry_file_write(path, source, &options, &error));
    assert_int_equal(error.errnum, EEXIST);
    expect_file(path, other);
    assert_int_equal(scratch_count(&folder), 1);
    wherry_value_destroy(source);
    wherry_value_destroy(other);
}

/** A part file that is too short is continued, and so is the finished file. */
static void test_resumes_what_there_is(void **state) {
    (void)state;
    enum { LARGE = 24 << 20, SHORT = 9 << 20 };
    wherry_value *source = build_dict("a", bytes(LARGE, 1), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    const char *part = scratch_file(&folder, ".a.safetensors.part");
    landing l = {path, with_flags(WHERRY_FILE_RESUME), NULL};
    must(wherry_file_write(path, source, NULL, &error));
    assert_int_equal(receive_file(source, &l, WHERRY_RECV_COMPARE), 0);
    assert_int_equal(rename(path, part), 0);
    assert_int_equal(truncate(part, SHORT), 0);
    uint64_t moved = receive_file(source, &l, WHERRY_RECV_COMPARE);
    assert_true(moved >= LARGE - SHORT && moved <= LARGE - SHORT + (4 << 20));
    expect_file(path, source);
    assert_int_equal(scratch_count(&folder), 1);
    wherry_value_destroy(source);
}

/**
 * Waits until a change of a file would get another time stamp, because the kernel's clock has
 * coarse ticks.
 */
static void await_tick(const char *path) {
    struct stat info;
    struct timespec now;
    stat(path, &info);
    do {
        usleep(1000);
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
    } while (now.tv_sec == info.st_ctim.tv_sec && now.tv_nsec == info.st_ctim.tv_nsec);
}

/** A writer may set the modification time back, but not the time of the last change. */
static void test_check_notices_a_change_with_an_old_time(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", bytes(100, 1), NULL);
    const char *path = scratch_file(&folder, "a.safetensors");
    struct stat info;
    wherry_file *file;
    must(wherry_file_write(path, source, NULL, &error));
    must(wherry_file_open(path, NULL, &file, &error));
    must(wherry_file_check(file, &error));
    stat(path, &info);
    await_tick(path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "x", 1, info.st_size - 1), 1);
    assert_int_equal(futimens(fd, (struct timespec[]){info.st_atim, info.st_mtim}), 0);
    close(fd);
    must_fail(WHERRY_CORRUPT, error, wherry_file_check(file, &error));
    wherry_file_close(file);
    /* Another file that takes the name changes nothing. */
    must(wherry_file_open(path, NULL, &file, &error));
    await_tick(path);
    must(wherry_file_write(path, source, NULL, &error));
    must(wherry_file_check(file, &error));
    wherry_file_close(file);
    wherry_value_destroy(source);
}

static void test_refuses_tensors_without_memory(void **state) {
    (void)state;
    int64_t count = 10;
    wherry_value *bare = build_dict("a", build_tensor(build_bare(10), WHERRY_U8, 0, 1, &count, NULL), NULL);
    static const char *const names[] = {"a.safetensors", "a.wherry"};
    for (int i = 0; i < 2; i++) {
        must_fail(WHERRY_UNSUPPORTED, error, wherry_file_write(scratch_file(&folder, names[i]), bare, NULL, &error));
    }
    assert_int_equal(scratch_count(&folder), 0);
    wherry_value_destroy(bare);
}

/** Bytes that no tensor covers are not written, and take no disk space. */
static void test_uncovered_bytes_take_no_disk_space(void **state) {
    (void)state;
    static const int64_t strides[] = {1 << 20, 100};
    for (int i = 0; i < 2; i++) {
        wherry_storage *storage = build_storage(64 << 20, 1);
        int64_t stride = strides[i];
        wherry_value *sparse =
            build_dict("a", build_view(storage, WHERRY_U8, 5, 2, SHAPE(60, 10), (int64_t[]){stride, 1}), NULL);
        const char *path = scratch_file(&folder, "a.wherry");
        must(wherry_file_write(path, sparse, NULL, &error));
        expect_file(path, sparse);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        /* File systems round up. */
        assert_true(info.st_size > 64 << 20 && info.st_blocks * 512 < 48 << 20);
        wherry_file *file;
        must(wherry_file_open(path, NULL, &file, &error));
        const char *data = data_of(wherry_file_state(file), "a");
        assert_int_equal(data[4], 0);
        assert_int_equal(data[15], 0);
        assert_int_equal(data[stride + 4], 0);
        assert_memory_equal(data + stride + 5, (char *)wherry_storage_data(storage) + stride + 5, 10);
        wherry_file_close(file);
        wherry_storage_unref(storage);
        wherry_value_destroy(sparse);
    }
}

int main(void) {
    static const wh_group_kind kind = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    ferry_kind = &kind;
    ferry_lane = "stream";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_receives_into_a_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_receives_any_state_into_a_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_resume_moves_only_the_rest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_resuming_reserves_space, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_truncation_while_sending_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_abandoned_file_is_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_next_writer_takes_over_the_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_a_second_writer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reports_files_that_cannot_be_created, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_index_is_renamed_last, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_has_the_requested_mode, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_replaced_file_keeps_its_mode, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_new_file_replaces_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_resumes_what_there_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_check_notices_a_change_with_an_old_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses_tensors_without_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_uncovered_bytes_take_no_disk_space, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("file_writer", tests, NULL, NULL);
}
