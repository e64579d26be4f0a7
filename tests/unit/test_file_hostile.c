/*
 * Hostile files. Each gives its expected status and an error that names file, tensor and byte
 * offset. Nothing leaks.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <wherry/file.h>

#include "support/build.h"
#include "support/counting_allocator.h"
#include "support/scratch_folder.h"

static wherry_error error;

static void golden_path(char path[1024], const char *folder, const char *name) {
    snprintf(path, 1024, "%.500s/files/%s/%.400s", getenv("WHERRY_GOLDEN"), folder, name);
}

/** Opens one file of the list. @return false if the result is not as listed. */
static bool check_line(const char *name, const char *status_name, const char *where) {
    char path[1024];
    wherry_file *file = NULL;
    counting memory;
    golden_path(path, "bad", name);
    memset(&error, 0xEE, sizeof(error));
    counting_begin(&memory);
    wherry_status status = wherry_file_open(path, NULL, &file, &error);
    wherry_file_close(file);
    bool clean = memory.held == 0;
    wherry_allocator_set(NULL);
    if (status == WHERRY_OK || strcmp(wherry_status_name(status), status_name) != 0 || error.status != status) {
        print_error("%s: %s instead of %s (%s)\n", name, wherry_status_name(status), status_name,
                    status ? error.message : "");
        return false;
    }
    if (strcmp(error.path, where) != 0 || !clean) {
        print_error("%s: path '%s' instead of '%s', %s (%s)\n", name, error.path, where, clean ? "clean" : "leaks",
                    error.message);
        return false;
    }
    /* The message names the file, except if the manifest's decoder or a shard fails. */
    bool named = strstr(error.message, name) != NULL || strncmp(name, "manifest_", 9) == 0 ||
                 strcmp(name, "storage_huge.wherry") == 0 || strcmp(name, "file_missing.safetensors.index.json") == 0 ||
                 strcmp(name, "file_not_safetensors.safetensors.index.json") == 0;
    if (!named) {
        print_error("%s: the message '%s' does not name the file\n", name, error.message);
    }
    return named;
}

static void test_bad_files_give_their_status(void **state) {
    (void)state;
    char path[1024];
    char line[1024];
    int count = 0;
    int wrong = 0;
    golden_path(path, "bad", "expected.tsv");
    FILE *list = fopen(path, "r");
    assert_non_null(list);
    while (fgets(line, sizeof(line), list)) {
        line[strcspn(line, "\n")] = '\0';
        char *status = strchr(line, '\t');
        assert_non_null(status);
        *status++ = '\0';
        char *where = strchr(status, '\t');
        assert_non_null(where);
        *where++ = '\0';
        wrong += !check_line(line, status, where);
        count++;
    }
    fclose(list);
    assert_true(count >= 92);
    assert_int_equal(wrong, 0);
}

/** Opens the first `size` bytes of a file. */
static wherry_status open_cut(const void *bytes, size_t size, wherry_file_format format) {
    int fd = memfd_create("cut", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    wherry_file_open_options options;
    wherry_file_open_options_init(&options);
    options.format = format;
    wherry_file *file = NULL;
    wherry_status status = wherry_file_open(path, &options, &file, &error);
    wherry_file_close(file);
    close(fd);
    return status;
}

/** A mismatch of sizes or counts is reported with both numbers. */
static void test_messages_name_both_sides(void **state) {
    (void)state;
    char path[1024];
    wherry_file *file;
    golden_path(path, "bad", "digests_not_said.wherry");
    must_fail(WHERRY_MALFORMED, error, wherry_file_open(path, NULL, &file, &error));
    assert_non_null(strstr(error.message, "the header counts 1 digests, but its flags say that there are none"));
    golden_path(path, "bad", "digests_missing.wherry");
    must_fail(WHERRY_MALFORMED, error, wherry_file_open(path, NULL, &file, &error));
    assert_non_null(strstr(error.message, "the file has 0 digests, but 1 chunks"));

    static const uint8_t cut[] = {100, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    must_fail(WHERRY_TRUNCATED, error, open_cut(cut, sizeof(cut), WHERRY_FILE_SAFETENSORS));
    assert_non_null(strstr(error.message, "the file has 10 bytes, but its header ends at byte 108"));
}

/** Good files can be opened. Truncated at any byte, they cannot. */
static void test_truncated_files_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"plain.safetensors", "no_metadata.safetensors", "plain.wherry"};
    for (int i = 0; i < 3; i++) {
        char path[1024];
        char bytes[8192];
        golden_path(path, "good", names[i]);
        wherry_file *file;
        must(wherry_file_open(path, NULL, &file, &error));
        wherry_file_close(file);
        FILE *in = fopen(path, "rb");
        assert_non_null(in);
        size_t size = fread(bytes, 1, sizeof(bytes), in);
        fclose(in);
        wherry_file_format format = wherry_file_format_of(names[i]);
        must(open_cut(bytes, size, format));
        for (size_t cut = 0; cut < size; cut++) {
            wherry_status status = open_cut(bytes, cut, format);
            if (status != WHERRY_TRUNCATED && status != WHERRY_MALFORMED) {
                fail_msg("%s truncated to %zu bytes: %s", names[i], cut, wherry_status_name(status));
            }
        }
    }
}

/**
 * Memory and time depend on the content of the header, not on the sizes that it claims or the size
 * of the file.
 */
static void test_large_sparse_files_need_little_memory(void **state) {
    (void)state;
    enum { TENSORS = 1000 };
    scratch folder = scratch_open();
    static const uint64_t sizes[] = {UINT64_C(100) << 20, UINT64_C(100) << 30};
    for (int k = 0; k < 2; k++) {
        uint64_t each = sizes[k] / TENSORS;
        char *header = malloc(TENSORS * 128);
        size_t length = 0;
        for (int i = 0; i < TENSORS; i++) {
            length += (size_t)snprintf(
                header + length, 128, "%c\"layer.%d\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[%llu,%llu]}",
                i ? ',' : '{', i, (unsigned long long)each, (unsigned long long)each * (unsigned)i,
                (unsigned long long)each * (unsigned)(i + 1));
        }
        header[length++] = '}';
        const char *path = scratch_file(&folder, k ? "large.safetensors" : "small.safetensors");
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        uint8_t prefix[8];
        for (int i = 0; i < 8; i++) {
            prefix[i] = (uint8_t)((uint64_t)length >> 8 * i);
        }
        fwrite(prefix, 1, 8, out);
        fwrite(header, 1, length, out);
        fclose(out);
        free(header);
        assert_int_equal(truncate(path, (off_t)(8 + length + each * TENSORS)), 0);
        counting memory;
        counting_begin(&memory);
        wherry_file *file;
        must(wherry_file_open(path, NULL, &file, &error));
        assert_int_equal(wherry_dict_count(wherry_file_state(file)), TENSORS);
        wherry_file_close(file);
        wherry_allocator_set(NULL);
        static uint64_t calls;
        /* A file that is a thousand times as large needs the same work. */
        assert_true(k == 0 || memory.calls == calls);
        calls = memory.calls;
    }
    scratch_close(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_files_give_their_status),
        cmocka_unit_test(test_messages_name_both_sides),
        cmocka_unit_test(test_truncated_files_are_refused),
        cmocka_unit_test(test_large_sparse_files_need_little_memory),
    };
    return cmocka_run_group_tests_name("file_hostile", tests, NULL, NULL);
}
