/*
 * Hostile indices of shards. Their folder has two good shards, one.safetensors and two.safetensors,
 * with tensors a and b.
 */
#include <string.h>

#include "file_harness.h"

static char folder[64];
static char index_path[128];
static char shard_paths[2][128];

static void clean_up(void) {
    unlink(index_path);
    unlink(shard_paths[0]);
    unlink(shard_paths[1]);
    rmdir(folder);
}

static void write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *out = fopen(path, "wb");
    REQUIRE(out && fwrite(bytes, 1, size, out) == size);
    fclose(out);
}

static void set_up(void) {
    static const char *const names[] = {"one", "two"};
    strcpy(folder, "/tmp/wherry-fuzz-XXXXXX");
    REQUIRE(mkdtemp(folder));
    snprintf(index_path, sizeof(index_path), "%s/i.safetensors.index.json", folder);
    for (int i = 0; i < 2; i++) {
        char bytes[128];
        int length = snprintf(bytes + 8, sizeof(bytes) - 8,
                              "{\"%c\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}abc", 'a' + i);
        memset(bytes, 0, 8);
        bytes[0] = (char)(length - 3);
        snprintf(shard_paths[i], sizeof(shard_paths[i]), "%s/%s.safetensors", folder, names[i]);
        write_bytes(shard_paths[i], bytes, (size_t)length + 8);
    }
    atexit(clean_up);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!folder[0]) {
        set_up();
    }
    write_bytes(index_path, data, size);
    fuzz_open(index_path, WHERRY_FILE_AUTO);
    return 0;
}
